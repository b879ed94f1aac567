//! Credential plug-ins: the program in a kubeconfig (`exec`), which prints a token or a certificate. Portreeve starts
//! no other program.
//!
//! Portreeve runs the plug-in itself. The client library would run the plug-in several times for one client. The
//! library limits neither the time nor the output of the plug-in.

use std::{process::Stdio, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use tokio::{io::AsyncReadExt as _, process::Command, time::timeout};

use super::{connect::trimmed, error::NO_ANSWER};
use portreeve_facts::text;

/// The time between the renewal of credentials and their end. Without this time, credentials could end during a
/// request.
const BEFORE_END: SignedDuration = SignedDuration::from_secs(60);
/// The longest output of a plug-in, in bytes: a token, or a certificate and its key.
const LONGEST: u64 = 1 << 20;

/// Runs the credential plug-in of a user, if there is one, and stores its output in `user`. Returns the time of the
/// next run, if the output has an end time. The plug-in is killed if it takes longer than `within`, or if the caller no
/// longer waits.
///
/// # Errors
/// Fails if the output is not usable. The error names the plug-in, and contains no token.
pub(super) async fn run(user: &mut AuthInfo, within: Duration) -> Result<Option<Timestamp>, String> {
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let late = |_| Err(format!("returned {NO_ANSWER} within {} s", within.as_secs_f32()));
    let printed = timeout(within, printed(&exec)).await.unwrap_or_else(late);
    printed.and_then(|printed| take(user, &printed)).map_err(|what| {
        let name = text::clean(exec.command.as_deref().unwrap_or_default(), text::NAME);
        format!("the credential plug-in {name} {what}")
    })
}

async fn printed(exec: &ExecConfig) -> Result<Vec<u8>, String> {
    let mut child = command(exec)?.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    let stdout = child.stdout.take().expect("it is piped");
    let mut printed = Vec::new();
    let read = stdout.take(LONGEST + 1).read_to_end(&mut printed).await;
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if printed.len() as u64 > LONGEST {
        return Err(format!("printed more than {LONGEST} bytes"));
    }
    let status = child.wait().await.map_err(|error| format!("cannot be waited for: {error}"))?;
    if status.success() { Ok(printed) } else { Err(format!("failed: {status}")) }
}

fn command(exec: &ExecConfig) -> Result<Command, String> {
    let mut command = Command::new(exec.command.as_ref().ok_or("has no command")?);
    command.args(exec.args.iter().flatten());
    for entry in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (entry.get("name"), entry.get("value")) {
            command.env(name, value);
        }
    }
    let interactive = exec.interactive_mode != Some(ExecInteractiveMode::Never);
    let mut spec = json!({"interactive": interactive});
    if exec.provide_cluster_info {
        let cluster = exec.cluster.as_ref().ok_or("needs a description of the cluster, and there is none")?;
        spec["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    command.env("KUBERNETES_EXEC_INFO", info.to_string()).stdout(Stdio::piped()).kill_on_drop(true);
    // A plug-in may have a dialogue with the user at the terminal. The plug-in writes its questions to stderr, as in
    // kubectl.
    command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
    Ok(command)
}

/// Reads the output of a plug-in: an `ExecCredential` (client-go `pkg/apis/clientauthentication/v1`), in JSON or YAML.
fn take(user: &mut AuthInfo, printed: &[u8]) -> Result<Option<Timestamp>, String> {
    // The parser's own message would contain the output.
    let credential: ExecCredential =
        serde_saphyr::from_slice(printed).map_err(|_| "printed no ExecCredential".to_owned())?;
    let status = credential.status.unwrap_or_default();
    match (status.client_certificate_data, status.client_key_data, status.token) {
        (Some(certificate), Some(key), _) => {
            user.client_certificate_data = Some(base64(certificate));
            user.client_key_data = Some(base64(key).into());
        }
        (_, _, Some(token)) => {
            let token = trimmed(&token).map_err(|what| format!("returned a token that cannot be used: {what}"))?;
            user.token = Some(token);
        }
        _ => return Err("returned neither a token nor a certificate with its key".to_owned()),
    }
    let ends = status.expiration_timestamp.map(|ends| ends.parse::<Timestamp>()).transpose();
    let ends = ends.map_err(|_| "returned an expirationTimestamp that is not a time".to_owned())?;
    Ok(ends.map(|ends| ends.saturating_sub(BEFORE_END).unwrap_or(ends)))
}

fn base64(pem: String) -> String {
    let encoded = serde_json::to_value(ByteString(pem.into_bytes())).expect("bytes are a JSON string");
    encoded.as_str().expect("bytes are a JSON string").to_owned()
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn the_output_of_a_plug_in_is_a_token_a_certificate_or_an_error_that_hides_it() {
        let given = |status: &str| {
            let mut user = AuthInfo::default();
            let printed = format!("{{\"kind\":\"ExecCredential\",\"status\":{status}}}");
            take(&mut user, printed.as_bytes()).map(|ends| (user, ends))
        };
        let (user, ends) = given(r#"{"token":"t\n","expirationTimestamp":"2030-01-01T00:00:00Z"}"#).expect("a token");
        assert_eq!(user.token.expect("a token").expose_secret(), "t");
        assert_eq!(ends, Some("2029-12-31T23:59:00Z".parse().expect("a time")));
        let (user, ends) =
            given(r#"{"clientCertificateData":"c","clientKeyData":"k","token":"t"}"#).expect("a certificate");
        assert_eq!(user.client_certificate_data.as_deref(), Some("Yw=="));
        assert_eq!(user.client_key_data.expect("a key").expose_secret(), "aw==");
        assert!(user.token.is_none() && ends.is_none());
        for (status, wanted) in [
            (r#"{"token":"sec\u0007ret"}"#, "control"),
            (r#"{"token":"secret","expirationTimestamp":"soon"}"#, "not a time"),
            (r#"{"clientKeyData":"secret"}"#, "neither a token nor"),
            ("null", "neither a token nor"),
            (r#"["secret"]"#, "no ExecCredential"),
        ] {
            let said = given(status).expect_err(status);
            assert!(said.contains(wanted) && !said.contains("sec"), "{status}: {said}");
        }
    }
}
