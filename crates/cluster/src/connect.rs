//! Makes a client from a kubeconfig or a service account. The client library itself renews the tokens and the
//! certificate authorities of service accounts. This file adds the limits on time and size that the library lacks. If
//! the library and kubectl differ, this file follows kubectl.

use std::{env, fmt, fs, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{AuthInfo, Kubeconfig, KubeconfigError},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{task, time::timeout};

use super::{
    credential_plugin,
    error::{Error, NO_ANSWER, causes},
    reconnecting_client::Reconnecting,
};
use portreeve_facts::text;

/// The name of the API server inside a cluster. Every certificate of an API server has this name.
const IN_CLUSTER: &str = "kubernetes.default.svc";
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The greatest age of a token that was read from the token file of a kubeconfig.
const FRESH: SignedDuration = SignedDuration::from_secs(60);

/// The settings of a connection to an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The credentials and the server.
    pub credentials: Credentials,
    /// The address that replaces the configured address of the server. The certificate authority stays the same. The
    /// server's certificate must still have the configured name: the host of the kubeconfig's server, or in a pod
    /// `kubernetes.default.svc`.
    pub api_server: Option<ApiServer>,
    /// The time limit of each phase of a request. The first phase is to connect and to get the head of the answer. Each
    /// wait for the next bytes of the answer is another phase.
    pub request_timeout: Duration,
}

impl Access {
    /// The namespace of the pod with this service account.
    pub fn own_namespace(&self) -> Option<String> {
        match self.credentials {
            Credentials::InCluster => namespace_in(&fs::read_to_string(OWN_NAMESPACE).ok()?),
            Credentials::Kubeconfig { .. } => None,
        }
    }

    /// The default of `--request-timeout`.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
}

fn namespace_in(file: &str) -> Option<String> {
    Some(file.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

/// The user whose rights are used: `kubectl --as` and `--as-group`. The credentials need the right to impersonate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user. `None` means the user of the credentials.
    pub user: Option<String>,
    /// The groups of this user. Without a user, the groups are ignored.
    pub groups: Vec<String>,
}

/// The credentials and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A context in the merged files. If no context is named, the current context is used.
    Kubeconfig {
        /// If several files set a value, the value of the first file counts, as in `$KUBECONFIG`.
        paths: Vec<PathBuf>,
        /// `--context`.
        context: Option<String>,
    },
    /// The service account of the pod in which this process runs.
    InCluster,
}

/// `--apiserver`: a URL such as `https://192.0.2.10:6443`. Plain HTTP is refused, so that a typing error cannot send a
/// token unencrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer(Uri);

impl FromStr for ApiServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri = text.parse::<Uri>().ok().filter(|uri| {
            let place = uri.authority().is_some_and(|it| {
                let is_whole = it.as_str() == it.host() || it.port_u16().is_some();
                !it.host().is_empty() && !it.as_str().contains('@') && is_whole
            });
            uri.scheme_str() == Some("https") && place && uri.query().is_none()
        });
        uri.map(Self).ok_or_else(|| format!("{text:?} is not a URL like https://192.0.2.10:6443"))
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A client, and the address of its server. Credentials are renewed before they end.
pub async fn connect(access: &Access) -> Result<(Client, String), Error> {
    connect_as(access, &Impersonation::default()).await
}

/// A client that acts as another user, and the address of its server. Credentials are renewed before they end.
pub async fn connect_as(access: &Access, impersonation: &Impersonation) -> Result<(Client, String), Error> {
    let (client, address) = log_in(access, impersonation).await?;
    Ok((Reconnecting::from(access, impersonation, client), address))
}

/// A client with the present credentials, and the address of its server.
pub(super) async fn log_in(access: &Access, impersonation: &Impersonation) -> Result<(Client, String), Error> {
    let place = match &access.credentials {
        Credentials::Kubeconfig { paths, .. } => {
            let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
            format!("kubeconfig {}", paths.join(", "))
        }
        Credentials::InCluster => "service account".to_owned(),
    };
    client(access, impersonation.clone()).await.map_err(|what| Error::Credentials { place, what })
}

async fn client(access: &Access, impersonation: Impersonation) -> Result<(Client, String), String> {
    let (credentials, within) = (access.credentials.clone(), access.request_timeout);
    // A file may be a pipe, or may be on a file server that hangs.
    let read = timeout(within, task::spawn_blocking(move || read(&credentials))).await;
    let read = read.map_err(|_| format!("{NO_ANSWER} within {} s", within.as_secs_f32()))?;
    let (mut config, of_file) = read.map_err(|panicked| panicked.to_string())??;
    let of_plugin = credential_plugin::run(&mut config.auth_info, within).await?;
    if let Impersonation { user: Some(user), groups } = impersonation {
        config.auth_info.impersonate = Some(user);
        config.auth_info.impersonate_groups = Some(groups);
    }
    if let Some(ApiServer(other)) = &access.api_server {
        let meant = match access.credentials {
            Credentials::InCluster => Some(IN_CLUSTER),
            Credentials::Kubeconfig { .. } => config.cluster_url.host(),
        };
        let meant = meant.map(|host| host.trim_matches(['[', ']']).to_owned());
        config.tls_server_name = config.tls_server_name.or(meant);
        config.cluster_url = other.clone();
    }
    // In a pod, the client connects to the API server directly, even if the environment names a proxy.
    if matches!(access.credentials, Credentials::Kubeconfig { .. }) {
        config.proxy_url = proxy_of(&config, |name| env::var(name).ok())?;
    }
    let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    // This limit must be longer than the limit of a request. If a server accepts the connection and does not answer,
    // the limit of the request ends first. So the error is *timed out*, not *unreachable*.
    config.connect_timeout = Some(within.saturating_mul(2));
    // The code that reads the answer decides whether to send a second request.
    config.default_retry = false;
    let client = ClientBuilder::try_from(config).map_err(|error| causes(&error))?;
    Ok((client.with_valid_until(of_plugin.or(of_file)).build(), address))
}

/// The settings in the credential files, and the time until which they are valid.
fn read(credentials: &Credentials) -> Result<(Config, Option<Timestamp>), String> {
    match credentials {
        Credentials::InCluster => Config::incluster().map(|config| (config, None)).map_err(|error| causes(&error)),
        Credentials::Kubeconfig { paths, context } => {
            let mut config = configured(merged(paths)?, context.clone())?;
            let ends = take_token(&mut config.auth_info)?;
            Ok((config, ends))
        }
    }
}

fn merged(paths: &[PathBuf]) -> Result<Kubeconfig, String> {
    let mut merged = Kubeconfig::default();
    for path in paths {
        let next = Kubeconfig::read_from(path).map_err(of_kubeconfig)?;
        merged = merged.merge(next).map_err(|error| causes(&error))?;
    }
    Ok(merged)
}

/// The settings of the context `context` in the merged files. Without `context`, the current context is used. Only a
/// `proxy-url` in the files sets a proxy here.
///
/// # Errors
/// Fails if the context does not exist, if a file in the context cannot be read, or if the server is no URL.
pub fn configured(mut merged: Kubeconfig, context: Option<String>) -> Result<Config, String> {
    let names: Vec<&str> = merged.contexts.iter().map(|it| it.name.as_str()).collect();
    if let Some(name) = context.as_deref().filter(|name| !names.contains(name)) {
        return Err(format!("the kubeconfig has no context {name:?}{}", text::did_you_mean(name, &names)));
    }
    merged.current_context = context.or(merged.current_context);
    let named = named_proxy(&merged);
    let mut config = Config::try_from(merged).map_err(|error| causes(&error))?;
    config.cluster_url = without_user(config.cluster_url);
    // For a server without a scheme, kubectl would use plain HTTP. Here, a server without a scheme is an error.
    if config.cluster_url.scheme().is_none() {
        return Err(format!("the server is {}, wanted https://HOST or https://HOST:PORT", config.cluster_url));
    }
    // Replaces the proxy that the library chose. The library also uses the proxy of the environment, but compares
    // NO_PROXY with the proxy's host instead of the server's host.
    config.proxy_url =
        named.map(|proxy| proxy.parse()).transpose().map_err(|_| "its proxy-url is not a URL".to_owned())?;
    Ok(config)
}

fn named_proxy(merged: &Kubeconfig) -> Option<String> {
    let context = merged.contexts.iter().find(|it| Some(&it.name) == merged.current_context.as_ref())?;
    let context = context.context.as_ref()?;
    let cluster = merged.clusters.iter().find(|it| it.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|proxy| !proxy.is_empty())
}

/// The proxy of the kubeconfig. If the kubeconfig names no proxy, the proxy of the environment is used, as in kubectl.
fn proxy_of(config: &Config, environment: impl Fn(&str) -> Option<String>) -> Result<Option<Uri>, String> {
    let proxy = config.proxy_url.clone().or_else(|| proxy_of_environment(&config.cluster_url, environment));
    match &proxy {
        Some(proxy) if !matches!(proxy.scheme_str(), Some("http" | "https" | "socks5")) => {
            let host = proxy.host().unwrap_or_default();
            Err(format!("the scheme of the proxy {host} is not supported, wanted http://, https:// or socks5://"))
        }
        _ => Ok(proxy),
    }
}

/// As in kubectl, requests to a server on this machine use no proxy.
fn proxy_of_environment(server: &Uri, environment: impl Fn(&str) -> Option<String>) -> Option<Uri> {
    let variable = |names: [&str; 2]| names.into_iter().find_map(|name| environment(name).filter(|it| !it.is_empty()));
    let proxy = variable(["HTTPS_PROXY", "https_proxy"])?;
    let host = server.host()?.trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        return None;
    }
    let exceptions = variable(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    Matcher::builder().https(proxy.as_str()).no(exceptions).build().intercept(server)?;
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    proxy.parse().ok()
}

/// The reason why a kubeconfig cannot be used. The parser's message quotes lines, and a line may contain a token or a
/// key. So the reason contains only the line and the column.
pub fn of_kubeconfig(error: KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else { return causes(&error) };
    let place = error.location().map(|at| format!(", line {}, column {}", at.line(), at.column()));
    format!("it is not a kubeconfig{}", place.unwrap_or_default())
}

/// The URL without its user and password. No login uses the user and password, and no message may contain them.
fn without_user(url: Uri) -> Uri {
    let place = url.authority().and_then(|it| it.as_str().rsplit_once('@')).map(|(_, place)| place.to_owned());
    let Some(place) = place else { return url };
    let mut parts = url.clone().into_parts();
    parts.authority = place.parse().ok();
    Uri::from_parts(parts).unwrap_or(url)
}

/// Chooses the token of a kubeconfig's user, in the order of kubectl, and removes the white space that editors add.
/// Returns the time until which the token is valid. A plug-in remains in `user` only if the plug-in must be run.
///
/// # Errors
/// Fails if a token cannot be sent in a header. For this token, the client library would panic.
pub fn take_token(user: &mut AuthInfo) -> Result<Option<Timestamp>, String> {
    if let Some(provider) = user.auth_provider.take() {
        let token = provider.config.get("id-token").filter(|_| provider.name == "oidc");
        let name = text::clean(&provider.name, text::NAME);
        let token = token.ok_or_else(|| format!("the auth-provider {name} is not supported; use exec instead"))?;
        user.token = Some(token.clone().into());
        (user.username, user.password, user.token_file) = (None, None, None);
    }
    let mut ends = None;
    if user.username.is_some() && user.password.is_some() {
        (user.token, user.token_file, user.exec) = (None, None, None);
    } else if let Some(path) = user.token_file.take().filter(|path| !path.is_empty()) {
        let token = fs::read_to_string(&path).map_err(|error| format!("{path} cannot be read: {error}"));
        let of_file = token.and_then(|token| trimmed(&token).map_err(|what| format!("{path}: {what}")));
        user.token = Some(match (of_file, &user.token) {
            // client-go transport/round_trippers.go `bearerAuthRoundTripper`.
            (Err(_), Some(token)) if !token.expose_secret().is_empty() => trimmed(token.expose_secret())?,
            (of_file, _) => of_file?,
        });
        // The token file is read again later, even if the file does not exist now.
        ends = Some(Timestamp::now() + FRESH);
    } else if let Some(token) = &user.token {
        user.token = Some(trimmed(token.expose_secret())?);
    }
    if user.token.is_some() {
        user.exec = None;
    }
    Ok(ends)
}

/// A token without surrounding white space, as in kubectl. The error does not contain the token.
pub(super) fn trimmed(token: &str) -> Result<SecretString, String> {
    let token = token.trim();
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token has forbidden characters: white space, control or non-ASCII characters".to_owned());
    }
    Ok(token.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_is_an_https_url_and_nothing_else() {
        for good in ["https://192.0.2.10:6443", "https://[2001:db8::1]:6443", "https://host/clusters/c1"] {
            assert_eq!(
                good.parse::<ApiServer>().map(|it| it.to_string().trim_end_matches('/').to_owned()),
                Ok(good.to_owned())
            );
        }
        for wrong in ["192.0.2.10:6443", "http://192.0.2.10", "https://", "https://me:secret@host", "https://h?a=b", ""]
        {
            assert!(wrong.parse::<ApiServer>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_newline_in_the_file_of_a_pods_namespace_is_no_part_of_the_name() {
        assert_eq!(namespace_in("shop\n").as_deref(), Some("shop"));
        assert_eq!(namespace_in("\n"), None);
    }

    #[test]
    fn a_password_in_the_address_of_a_server_is_not_sent() {
        let url = Uri::from_static("https://me:secret@192.0.2.10:6443/clusters/c1");
        assert_eq!(without_user(url), "https://192.0.2.10:6443/clusters/c1");
        let url = Uri::from_static("https://[2001:db8::1]:6443");
        assert_eq!(without_user(url.clone()), url);
    }

    #[test]
    fn the_context_that_was_meant_is_named() {
        let text = "{contexts: [{name: blue}, {name: green}]}";
        let of = |name: &str| configured(Kubeconfig::from_yaml(text).expect("a kubeconfig"), Some(name.to_owned()));
        let message = of("gren").expect_err("no context");
        assert_eq!(message, "the kubeconfig has no context \"gren\", did you mean \"green\"?");
        assert!(!of("blue").expect_err("no server").contains("no context"));
    }

    #[test]
    fn a_server_without_a_scheme_is_an_error_and_no_panic() {
        for server in ["127.0.0.1:6443", "me:secret@localhost", "5"] {
            let said = at(server, "").expect_err("no scheme");
            assert!(said.starts_with("the server is ") && said.contains("https://"), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }

    /// The parser's own message contains the lines around an error, and values of a wrong type.
    #[test]
    fn the_error_of_a_broken_kubeconfig_shows_no_part_of_it() {
        for broken in [
            "users:\n- name: u\n  user:\n    token: s3cr3t\n    client-key-data: [\n",
            "users:\n- name: u\n  user: s3cr3t\n",
            "users:\n- name: u\n  user:\n    token: {s3cr3t: 1}\n",
            "users: s3cr3t\n",
        ] {
            let said = of_kubeconfig(Kubeconfig::from_yaml(broken).expect_err("it is broken"));
            assert!(said.starts_with("it is not a kubeconfig, line ") && !said.contains("s3cr3t"), "{said}");
        }
    }

    fn at(server: &str, more: &str) -> Result<Config, String> {
        let text = format!(
            "{{current-context: c, clusters: [{{name: c, cluster: {{server: {server:?}{more}}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
        );
        configured(Kubeconfig::from_yaml(&text).expect("a kubeconfig"), None)
    }

    fn proxy(server: &str, more: &str) -> Result<Option<String>, String> {
        let environment = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://me:hunter2@proxy.corp.example:3128".to_owned()),
            "NO_PROXY" => Some(".corp.example, 10.0.0.0/8".to_owned()),
            _ => None,
        };
        let proxy = proxy_of(&at(server, more)?, environment)?;
        Ok(proxy.and_then(|proxy| proxy.host().map(str::to_owned)))
    }

    #[test]
    fn the_proxy_of_the_kubeconfig_is_used_or_else_the_proxy_of_kubectl() {
        assert_eq!(proxy("https://192.0.2.10:6443", ""), Ok(Some("proxy.corp.example".to_owned())));
        for direct in ["https://10.1.2.3:6443", "https://api.corp.example", "https://127.0.0.1:6443", "https://[::1]:1"]
        {
            assert_eq!(proxy(direct, ""), Ok(None), "{direct}");
        }
        // If the kubeconfig names the proxy, NO_PROXY has no effect.
        let named = ", proxy-url: \"socks5://near.corp.example:1080\"";
        assert_eq!(proxy("https://10.1.2.3:6443", named), Ok(Some("near.corp.example".to_owned())));
        let server = Uri::from_static("https://192.0.2.10");
        assert_eq!(proxy_of_environment(&server, |_| None), None);
        let bare = |name: &str| (name == "https_proxy").then(|| "proxy:3128".to_owned());
        assert_eq!(proxy_of_environment(&server, bare), Some(Uri::from_static("http://proxy:3128")));
    }

    #[test]
    fn an_unsupported_proxy_is_named_without_its_password() {
        let said =
            proxy("https://192.0.2.10", ", proxy-url: \"ftp://me:hunter2@proxy.example\"").expect_err("an unknown one");
        assert!(said.contains("the proxy proxy.example") && !said.contains("hunter2"), "{said}");
    }

    #[test]
    fn white_space_around_a_token_is_removed_and_inside_a_token_is_an_error_that_hides_it() {
        for token in ["secret", "secret\n", "secret\r\n", "\u{a0}secret\n\n", " secret\t"] {
            assert_eq!(trimmed(token).expect("a token").expose_secret(), "secret", "{token:?}");
        }
        for token in ["", "\n", "sec\nret", "sec\0ret", "sec ret", "secr\u{e9}t"] {
            let said = trimmed(token).expect_err("it is no token");
            assert!(said.starts_with("the token ") && !said.contains("sec"), "{said}");
        }
    }

    /// client-go `tools/clientcmd/api/v1/types.go`: "If both Token and TokenFile are specified, the TokenFile will be
    /// periodically read and the last successfully read content takes precedence over Token."
    #[test]
    fn the_file_of_a_token_comes_before_the_token() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("token");
        let taken = |more: &str| {
            let text = format!("users: [{{name: u, user: {{tokenFile: {path:?}{more}}}}}]");
            let mut user =
                Kubeconfig::from_yaml(&text).expect("a kubeconfig").auth_infos.remove(0).auth_info.expect("a user");
            let ends = take_token(&mut user)?;
            Ok::<_, String>((user.token.map(|it| it.expose_secret().to_owned()), ends.is_some()))
        };
        assert_eq!(taken(", token: t"), Ok((Some("t".to_owned()), true)), "the file may appear later");
        assert!(taken(", token: \"\"").is_err_and(|said| said.contains("cannot be read")));
        fs::write(&path, "\n").expect("a file");
        assert_eq!(taken(", token: t"), Ok((Some("t".to_owned()), true)));
        fs::write(&path, "of-the-file").expect("a file");
        assert_eq!(taken(", token: t"), Ok((Some("of-the-file".to_owned()), true)));
        let provider = ", auth-provider: {name: oidc, config: {id-token: i}}";
        assert_eq!(taken(provider), Ok((Some("i".to_owned()), false)));
    }

    #[test]
    fn a_plug_in_runs_only_if_there_are_no_other_credentials() {
        let user = |more: &str| {
            let text = format!("users: [{{name: u, user: {{exec: {{command: x}}{more}}}}}]");
            let mut user =
                Kubeconfig::from_yaml(&text).expect("a kubeconfig").auth_infos.remove(0).auth_info.expect("a user");
            take_token(&mut user).map(|_| (user.exec.is_some(), user.token.map(|it| it.expose_secret().to_owned())))
        };
        assert_eq!(user(""), Ok((true, None)));
        assert_eq!(user(", token: t"), Ok((false, Some("t".to_owned()))));
        assert_eq!(user(", token: t, username: u, password: p"), Ok((false, None)));
        assert_eq!(user(", auth-provider: {name: oidc, config: {id-token: i}}"), Ok((false, Some("i".to_owned()))));
        assert!(user(", auth-provider: {name: gcp, config: {cmd-path: sh}}").is_err_and(|said| said.contains("gcp")));
        assert!(user(", tokenFile: /nowhere/token").is_err_and(|said| said.contains("/nowhere/token cannot be read")));
    }
}
