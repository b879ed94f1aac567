//! From a kubeconfig or a service account to a client.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Uri, header};
use hyper::ext::on_informational;
use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::{AuthError, Body, ConfigExt as _},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use secrecy::ExposeSecret as _;
use tokio::{runtime::Handle, select, sync::Notify};
use tower::{BoxError, ServiceBuilder, service_fn};

use super::{
    credential_files,
    credential_plugin::{self, CredentialPlugin, Given},
    error::{Error, NO_ANSWER, causes},
    plugin_guard::{Ended, PluginGuard, bounded},
    token::{TokenFile, bearer},
};
use portreeve_facts::text;

/// The name of the API server inside a cluster, which every certificate of it holds.
const IN_CLUSTER: &str = "kubernetes.default.svc";
/// The most that a connection holds of what was not taken from it yet, in bytes: more than the head of any answer.
const BUFFER: usize = 32 << 10;
/// The most early answers before an answer: `100 Continue` and its like (RFC 9110, 15.2), without an end otherwise. Go's client,
/// and so kubectl, takes no more (`net/http` `max1xxResponses`).
const EARLY_ANSWERS: usize = 5;

/// The most that is shown of what a credential plug-in says, in bytes.
const MESSAGE: usize = 200;

/// How to reach an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who to be, and where to go.
    pub credentials: Credentials,
    /// Where to go instead. The server is known by the same certificate authority and the same name as without it:
    /// the name of the kubeconfig's server, or in a pod that of the Service `kubernetes`.
    pub api_server: Option<ApiServer>,
    /// How long each phase of a request may take: connecting and the head of the answer, and each wait for more of it.
    pub request_timeout: Duration,
}

impl Access {
    /// The namespace of the pod whose service account it is.
    pub fn own_namespace(&self) -> Option<String> {
        match self.credentials {
            Credentials::InCluster => credential_files::own_namespace(),
            Credentials::Kubeconfig { .. } => None,
        }
    }

    /// The default of `--request-timeout`.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
}

/// The user to act as: `kubectl --as` and `--as-group`. The credentials need the right to impersonate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user; the one of the credentials without it.
    pub user: Option<String>,
    /// The groups of that user; not used without a user.
    pub groups: Vec<String>,
}

/// Who to be, and where to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A context of the merged files, the current one unless it is named.
    Kubeconfig {
        /// The files; the first that sets a value wins, as in `$KUBECONFIG`.
        paths: Vec<PathBuf>,
        /// `--context`.
        context: Option<String>,
    },
    /// The service account of the pod this runs in.
    InCluster,
}

/// `--apiserver`: an URL like `https://192.0.2.10:6443`.
///
/// Never plain HTTP: a slip of the pen must not send a token in the clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer(Uri);

impl FromStr for ApiServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri = text.parse::<Uri>().ok().filter(|uri| {
            let place = uri.authority().is_some_and(|it| !it.host().is_empty() && !it.as_str().contains('@'));
            uri.scheme_str() == Some("https") && place && uri.query().is_none()
        });
        uri.map(Self).ok_or_else(|| format!("{text:?} is not an URL like https://192.0.2.10:6443"))
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A client, and the address it talks to.
pub async fn connect(access: &Access) -> Result<(Client, String), Error> {
    connect_as(access, &Impersonation::default()).await
}

/// The same, acting as another user.
pub async fn connect_as(access: &Access, impersonation: &Impersonation) -> Result<(Client, String), Error> {
    let place = match &access.credentials {
        Credentials::Kubeconfig { paths, .. } => {
            let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
            format!("kubeconfig {}", paths.join(", "))
        }
        Credentials::InCluster => "service account".to_owned(),
    };
    let unusable = |what: String| Error::Credentials { place: place.clone(), what };
    let (wanted, impersonation, within) = (access.clone(), impersonation.clone(), access.request_timeout);
    // Files are read and credential plug-ins are run in here; both can hang.
    let runtime = Handle::current();
    let made = bounded(within, move |guard| runtime.block_on(make(&wanted, impersonation, guard)));
    match made.await {
        Err(Ended::TimedOut) => Err(Error::TimedOut { request: place, what: NO_ANSWER, limit: within }),
        Err(Ended::Panicked(panicked)) => Err(unusable(panicked)),
        Ok(made) => made.map_err(unusable),
    }
}

async fn make(access: &Access, impersonation: Impersonation, guard: &PluginGuard) -> Result<(Client, String), String> {
    let mut config = match &access.credentials {
        Credentials::InCluster => {
            credential_files::check_service_account()?;
            Config::incluster().map_err(|error| causes(&error))?
        }
        Credentials::Kubeconfig { paths, context } => {
            let mut merged = Kubeconfig::default();
            for path in paths {
                credential_files::check_kubeconfig(path)?;
                let next = Kubeconfig::read_from(path).map_err(of_kubeconfig)?;
                merged = merged.merge(next).map_err(|error| causes(&error))?;
            }
            credential_files::check_context(&merged, context.as_deref())?;
            configured(merged, context.clone()).await?
        }
    };
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
    let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    Ok((client(config, access.request_timeout, guard)?, address))
}

/// What the merged files say of a context, the current one unless it is named. It reads no file.
pub async fn configured(merged: Kubeconfig, context: Option<String>) -> Result<Config, String> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(merged, &options).await.map_err(|error| causes(&error))?;
    config.cluster_url = without_user(config.cluster_url);
    // kubectl would take it for plain HTTP.
    if config.cluster_url.scheme().is_none() {
        return Err(format!("the server is {}, wanted https://HOST or https://HOST:PORT", config.cluster_url));
    }
    Ok(config)
}

/// Why a kubeconfig cannot be used. What the parser says quotes lines, and a line may be a token or a key: the place has to do.
pub fn of_kubeconfig(error: KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else { return causes(&error) };
    let place = error.location().map(|at| format!(", line {}, column {}", at.line(), at.column()));
    format!("it is no kubeconfig{}", place.unwrap_or_default())
}

/// An URL without a user and a password: these are no way to log in, and nobody is to read them.
fn without_user(url: Uri) -> Uri {
    let place = url.authority().and_then(|it| it.as_str().rsplit_once('@')).map(|(_, place)| place.to_owned());
    let Some(place) = place else { return url };
    let mut parts = url.clone().into_parts();
    parts.authority = place.parse().ok();
    Uri::from_parts(parts).unwrap_or(url)
}

/// How requests say who we are.
#[derive(Clone, Debug)]
pub enum Authorization {
    /// A token that stays as it is.
    Token(HeaderValue),
    /// A token in a file.
    File(TokenFile),
    /// Tokens from a plug-in.
    Plugin(CredentialPlugin),
}

impl Authorization {
    async fn value(&self) -> Result<HeaderValue, String> {
        match self {
            Self::Token(value) => Ok(value.clone()),
            Self::File(token) => Ok(token.authorization()),
            Self::Plugin(plugin) => plugin.authorization().await,
        }
    }

    /// Takes what a user has of tokens, in the order of kubectl. The client library would panic with a token that cannot be
    /// sent, and run a plug-in without a bound. A certificate, and a name with a password, are left to it.
    pub fn take(user: &mut AuthInfo, within: Duration, guard: &PluginGuard) -> Result<Option<Self>, String> {
        if let Some(provider) = user.auth_provider.take() {
            let token = provider.config.get("id-token").filter(|_| provider.name == "oidc");
            let name = text::clean(&provider.name, text::NAME);
            let token = token.ok_or_else(|| format!("the auth-provider {name} is not known here; use exec instead"))?;
            user.exec = None;
            return bearer(token).map(Self::Token).map(Some);
        }
        if user.username.is_some() && user.password.is_some() {
            return Ok(None);
        }
        let (token, file) = (user.token.take(), user.token_file.take());
        if let Some(token) = token {
            user.exec = None;
            return bearer(token.expose_secret()).map(Self::Token).map(Some);
        }
        if let Some(file) = file {
            user.exec = None;
            return TokenFile::read(Path::new(&file)).map(Self::File).map(Some);
        }
        let Some(exec) = &user.exec else { return Ok(None) };
        Ok(match credential_plugin::run(exec, guard)? {
            Given::Certificate => None,
            Given::Token(token) => {
                user.exec.take().map(|exec| Self::Plugin(CredentialPlugin::new(exec, token, within)))
            }
        })
    }
}

/// The client library's own client without what is done elsewhere: each request has its own limit, connecting and all,
/// and retries are decided where the answer is judged. Its buffers would grow to hundreds of kilobytes with a LIST, and an
/// agent keeps a connection for each of its watches.
fn client(mut config: Config, within: Duration, guard: &PluginGuard) -> Result<Client, String> {
    // A configured proxy is never bypassed.
    if let Some(proxy) = &config.proxy_url {
        return Err(format!("the way through the proxy {} is not known here", proxy.host().unwrap_or_default()));
    }
    let authorization = Authorization::take(&mut config.auth_info, within, guard)?;
    let has_password = config.auth_info.username.is_some() && config.auth_info.password.is_some();
    let basic = if has_password { config.auth_layer().map_err(of_library)? } else { None };
    // This runs a plug-in that gives certificates.
    let connections = legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(BUFFER)
        .build(config.rustls_https_connector().map_err(of_library)?);
    let authorized = service_fn(move |mut request: Request<Body>| {
        let (authorization, connections) = (authorization.clone(), connections.clone());
        async move {
            if let Some(authorization) = authorization {
                let value = authorization.value().await.map_err(BoxError::from)?;
                request.headers_mut().insert(header::AUTHORIZATION, value);
            }
            let too_many = too_many_early_answers(&mut request);
            select! {
                answer = connections.request(request) => answer.map_err(BoxError::from),
                () = too_many.notified() => Err(BoxError::from("it says \"100 Continue\" again and again and does not answer")),
            }
        }
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(basic)
        .layer(config.extra_headers_layer().map_err(of_library)?)
        .map_err(BoxError::from)
        .service(authorized);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// That there are too many early answers before the answer to this request. Who drops the request then closes the connection; the
/// client library would read on until the request's time is over, which takes a whole core.
fn too_many_early_answers<B>(request: &mut Request<B>) -> Arc<Notify> {
    let too_many = Arc::new(Notify::new());
    let (told, seen) = (Arc::clone(&too_many), AtomicUsize::new(0));
    on_informational(request, move |_| {
        if seen.fetch_add(1, Relaxed) == EARLY_ANSWERS {
            told.notify_one();
        }
    });
    too_many
}

/// An error of the client library. What a plug-in has written may be long, or a token.
#[allow(clippy::needless_pass_by_value, reason = "maps errors")]
fn of_library(error: kube::Error) -> String {
    match &error {
        kube::Error::Auth(AuthError::AuthExecRun { out, .. }) => {
            let said = &out.stderr[..out.stderr.len().min(MESSAGE)];
            let said = text::clean(&String::from_utf8_lossy(said), MESSAGE);
            format!("the credential plug-in failed: {}: {said}", out.status)
        }
        error => causes(error),
    }
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
    fn a_password_in_the_address_of_a_server_goes_nowhere() {
        let url = Uri::from_static("https://me:secret@192.0.2.10:6443/clusters/c1");
        assert_eq!(without_user(url), "https://192.0.2.10:6443/clusters/c1");
        let url = Uri::from_static("https://[2001:db8::1]:6443");
        assert_eq!(without_user(url.clone()), url);
    }

    #[tokio::test]
    async fn a_server_without_a_scheme_is_named_and_no_panic() {
        for server in ["127.0.0.1:6443", "me:secret@localhost", "5"] {
            let text = format!(
                "{{current-context: c, clusters: [{{name: c, cluster: {{server: {server:?}}}}}], \
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
            );
            let file = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
            let said = configured(file, None).await.expect_err("no scheme");
            assert!(said.starts_with("the server is ") && said.contains("https://"), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }

    /// The parser's own words show the lines around an error, and the words of the wrong type.
    #[test]
    fn what_is_said_of_a_broken_kubeconfig_shows_nothing_of_it() {
        for broken in [
            "users:\n- name: u\n  user:\n    token: s3cr3t\n    client-key-data: [\n",
            "users:\n- name: u\n  user: s3cr3t\n",
            "users:\n- name: u\n  user:\n    token: {s3cr3t: 1}\n",
            "users: s3cr3t\n",
        ] {
            let said = of_kubeconfig(Kubeconfig::from_yaml(broken).expect_err("it is broken"));
            assert!(said.starts_with("it is no kubeconfig, line ") && !said.contains("s3cr3t"), "{said}");
        }
    }

    #[test]
    fn a_server_behind_a_proxy_is_not_asked_around_it() {
        let mut config = Config::new(Uri::from_static("https://192.0.2.10:6443"));
        config.proxy_url = Some(Uri::from_static("http://proxy.example:3128"));
        let refused = client(config, Access::REQUEST_TIMEOUT, &PluginGuard::default()).err().unwrap_or_default();
        assert!(refused.contains("proxy.example"), "{refused}");
    }
}
