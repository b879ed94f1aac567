//! Credential plug-ins: the program that a kubeconfig names (`exec`), which prints a token or a certificate.
//!
//! It is run here and not by the client library. The library runs it again when its token ends, without a bound, and takes
//! over a token that cannot be sent, which ends in a panic.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::{
    plugin_guard::{Ended, PluginGuard, bounded},
    token::bearer,
};
use portreeve_facts::text;

/// A token is replaced so long before it ends, so that none ends on its way.
const BEFORE_END: SignedDuration = SignedDuration::from_secs(60);
/// The most that is shown of what a plug-in says, in bytes.
const MESSAGE: usize = 200;

/// A plug-in that gives tokens, and its last one.
#[derive(Clone, Debug)]
pub struct CredentialPlugin {
    exec: Arc<ExecConfig>,
    /// How long one run may take.
    within: Duration,
    kept: Arc<Mutex<PluginToken>>,
}

/// What a plug-in gives.
#[derive(Debug)]
pub(super) enum Given {
    /// A token.
    Token(PluginToken),
    /// A certificate, which the client library asks it for once more.
    Certificate,
}

/// A token as it is sent, and its end, where it has one.
#[derive(Clone, Debug)]
pub(super) struct PluginToken {
    value: HeaderValue,
    ends: Option<Timestamp>,
}

impl CredentialPlugin {
    /// A plug-in that has given this token; each later run may take so long.
    pub(super) fn new(exec: ExecConfig, token: PluginToken, within: Duration) -> Self {
        Self { exec: Arc::new(exec), within, kept: Arc::new(Mutex::new(token)) }
    }

    /// The value of the header `Authorization`. A token that is about to end is replaced first, by one run at a time.
    pub(super) async fn authorization(&self) -> Result<HeaderValue, String> {
        let mut kept = self.kept.lock().await;
        if kept.ends.is_some_and(|ends| ends < Timestamp::now() + BEFORE_END) {
            let exec = Arc::clone(&self.exec);
            let given = bounded(self.within, move |guard| run(&exec, guard)).await;
            *kept = match given.map_err(|ended| said(&self.exec, &late(&ended, self.within)))?? {
                Given::Token(token) => token,
                Given::Certificate => return Err(said(&self.exec, "gave a certificate, and a token before")),
            };
        }
        Ok(kept.value.clone())
    }
}

fn late(ended: &Ended, within: Duration) -> String {
    match ended {
        Ended::TimedOut => format!("gave no answer within {} s", within.as_secs_f32()),
        Ended::Panicked(panicked) => panicked.clone(),
    }
}

/// Runs a plug-in to its end, on the thread that the guard watches. The error names it, and shows no token.
pub(super) fn run(exec: &ExecConfig, guard: &PluginGuard) -> Result<Given, String> {
    let wrong = |what: &str| said(exec, what);
    let mut command = command(exec).map_err(|what| wrong(&what))?;
    let child = command.spawn().map_err(|error| wrong(&format!("cannot be started: {error}")))?;
    // Nobody may be waiting any more since before it was there to be ended.
    guard.end_if_left();
    let output = child.wait_with_output().map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if !output.status.success() {
        let words = &output.stderr[..output.stderr.len().min(MESSAGE)];
        let words = text::clean(&String::from_utf8_lossy(words), MESSAGE);
        return Err(wrong(&format!("failed: {}: {words}", output.status)));
    }
    given(&output.stdout).map_err(|what| wrong(&what))
}

/// What a plug-in printed: an `ExecCredential` (client-go `pkg/apis/clientauthentication/v1`), in JSON or YAML.
fn given(printed: &[u8]) -> Result<Given, String> {
    // The parser's own words would show what was printed.
    let credential: ExecCredential =
        serde_saphyr::from_slice(printed).map_err(|_| "printed something else than an ExecCredential".to_owned())?;
    let status = credential.status.unwrap_or_default();
    if status.client_certificate_data.is_some() && status.client_key_data.is_some() {
        return Ok(Given::Certificate);
    }
    let token = status.token.ok_or("gave neither a token nor a certificate with its key")?;
    let value = bearer(&token).map_err(|what| format!("gave a token that cannot be used: {what}"))?;
    let ends = status.expiration_timestamp.map(|ends| ends.parse()).transpose();
    let ends = ends.map_err(|_| "gave an expirationTimestamp that is no time".to_owned())?;
    Ok(Given::Token(PluginToken { value, ends }))
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
        let cluster = exec.cluster.as_ref().ok_or("wants the cluster, which has no description")?;
        spec["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    command.env("KUBERNETES_EXEC_INFO", info.to_string()).stdout(Stdio::piped());
    // One that may ask a person does so at the terminal.
    let (stdin, stderr) =
        if interactive { (Stdio::inherit(), Stdio::inherit()) } else { (Stdio::null(), Stdio::piped()) };
    command.stdin(stdin).stderr(stderr);
    Ok(command)
}

fn said(exec: &ExecConfig, what: &str) -> String {
    format!("the credential plug-in {} {what}", text::clean(exec.command.as_deref().unwrap_or_default(), text::NAME))
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
    use super::*;

    #[test]
    fn what_a_plug_in_prints_is_a_token_or_a_certificate_or_named_without_showing_it() {
        let given = |status: &str| given(format!("{{\"kind\":\"ExecCredential\",\"status\":{status}}}").as_bytes());
        let token = given(r#"{"token":"t","expirationTimestamp":"2030-01-01T00:00:00Z"}"#).expect("a token");
        assert!(matches!(token, Given::Token(PluginToken { value, ends: Some(_) }) if value == "Bearer t"));
        let certificate = given(r#"{"clientCertificateData":"c","clientKeyData":"k"}"#);
        assert!(matches!(certificate, Ok(Given::Certificate)));
        for (status, wanted) in [
            (r#"{"token":"sec\u0007ret"}"#, "control"),
            (r#"{"token":"secret","expirationTimestamp":"soon"}"#, "no time"),
            (r#"{"clientKeyData":"secret"}"#, "neither a token nor"),
            ("null", "neither a token nor"),
            (r#"["secret"]"#, "something else"),
        ] {
            let said = given(status).expect_err(status);
            assert!(said.contains(wanted) && !said.contains("sec"), "{status}: {said}");
        }
    }
}
