//! From a kubeconfig or a service account to a client.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use http::{Request, Uri, header};
use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::{AuthError, Body, ConfigExt as _},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use secrecy::ExposeSecret as _;
use tokio::{runtime::Handle, select, task, time};
use tower::{BoxError, ServiceBuilder};

use super::{
    credential_files,
    error::{Error, NO_ANSWER, causes},
    plugin_guard::PluginGuard,
    token::{TokenFile, trimmed},
};
use crate::facts::text;

/// The name of the API server inside a cluster, which every certificate of it holds.
const IN_CLUSTER: &str = "kubernetes.default.svc";
/// The most that a connection holds of what was not taken from it yet, in bytes: more than the head of any answer.
const BUFFER: usize = 32 << 10;

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
pub(super) async fn connect(access: &Access) -> Result<(Client, String), Error> {
    connect_as(access, &Impersonation::default()).await
}

/// The same, acting as another user.
pub(super) async fn connect_as(access: &Access, impersonation: &Impersonation) -> Result<(Client, String), Error> {
    let place = match &access.credentials {
        Credentials::Kubeconfig { paths, .. } => {
            let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
            format!("kubeconfig {}", paths.join(", "))
        }
        Credentials::InCluster => "service account".to_owned(),
    };
    let unusable = |what: String| Error::Credentials { place: place.clone(), what };
    let (wanted, impersonation) = (access.clone(), impersonation.clone());
    // Files are read and credential plug-ins are run in here; both can hang.
    let runtime = Handle::current();
    let guard = PluginGuard::default();
    let made = task::spawn_blocking({
        let guard = guard.clone();
        move || {
            guard.enter();
            let made = runtime.block_on(make(&wanted, impersonation));
            guard.leave();
            made
        }
    });
    let made = async {
        select! { made = made => made, never = guard.watch() => never }
    };
    match time::timeout(access.request_timeout, made).await {
        Err(_) => {
            guard.end();
            Err(Error::TimedOut { request: place, what: NO_ANSWER, limit: access.request_timeout })
        }
        Ok(Err(panicked)) => Err(unusable(panicked.to_string())),
        Ok(Ok(made)) => made.map_err(unusable),
    }
}

async fn make(access: &Access, impersonation: Impersonation) -> Result<(Client, String), String> {
    let mut config = match &access.credentials {
        Credentials::InCluster => {
            credential_files::check_service_account()?;
            Config::incluster().map_err(|error| causes(&error))?
        }
        Credentials::Kubeconfig { paths, context } => {
            let mut merged = Kubeconfig::default();
            for path in paths {
                credential_files::check(path)?;
                let next = Kubeconfig::read_from(path).map_err(|error| causes(&error))?;
                merged = merged.merge(next).map_err(|error| causes(&error))?;
            }
            credential_files::check_context(&merged, context.as_deref())?;
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(merged, &options).await.map_err(|error| causes(&error))?
        }
    };
    config.cluster_url = without_user(config.cluster_url);
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
    Ok((client(config)?, address))
}

/// An URL without a user and a password: these are no way to log in, and nobody is to read them.
fn without_user(url: Uri) -> Uri {
    let place = url.authority().and_then(|it| it.as_str().rsplit_once('@')).map(|(_, place)| place.to_owned());
    let Some(place) = place else { return url };
    let mut parts = url.clone().into_parts();
    parts.authority = place.parse().ok();
    Uri::from_parts(parts).unwrap_or(url)
}

/// The token of a user, where it is a text or a file: a file is read by us, since the library takes over the newline that
/// editors add, and panics.
fn take_token(user: &mut AuthInfo) -> Result<Option<TokenFile>, String> {
    if user.auth_provider.is_some() || (user.username.is_some() && user.password.is_some()) {
        return Ok(None);
    }
    let file = user.token_file.take();
    if let Some(token) = &user.token {
        let token = trimmed(token.expose_secret())?.to_owned();
        user.token = Some(token.into());
        return Ok(None);
    }
    let Some(file) = file else { return Ok(None) };
    user.exec = None;
    TokenFile::read(Path::new(&file)).map(Some)
}

/// The client library's own client without what is done elsewhere: each request has its own limit, connecting and all,
/// and retries are decided where the answer is judged. Its buffers would grow to hundreds of kilobytes with a LIST, and an
/// agent keeps a connection for each of its watches.
fn client(mut config: Config) -> Result<Client, String> {
    // A configured proxy is never bypassed.
    if let Some(proxy) = &config.proxy_url {
        return Err(format!("the way through the proxy {} is not known here", proxy.host().unwrap_or_default()));
    }
    let token = take_token(&mut config.auth_info)?;
    let authorized = move |mut request: Request<Body>| {
        if let Some(token) = &token {
            request.headers_mut().insert(header::AUTHORIZATION, token.authorization());
        }
        request
    };
    // Both run a plug-in. One that was ended ends this, so that no other one is started that nobody waits for.
    let authentication = config.auth_layer().map_err(of_library)?;
    let connections = legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(BUFFER)
        .build(config.rustls_https_connector().map_err(of_library)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(authentication)
        .map_request(authorized)
        .layer(config.extra_headers_layer().map_err(of_library)?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace.clone()))
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

    #[test]
    fn a_server_behind_a_proxy_is_not_asked_around_it() {
        let mut config = Config::new(Uri::from_static("https://192.0.2.10:6443"));
        config.proxy_url = Some(Uri::from_static("http://proxy.example:3128"));
        let refused = client(config).err().unwrap_or_default();
        assert!(refused.contains("proxy.example"), "{refused}");
    }
}
