//! etcd and kube-apiserver.

use std::{path::PathBuf, process::Command};

use tempfile::TempDir;

use super::{api::Api, directory::Directory, process::Process, talk::http_get};

/// Names of users; each one's token is its name. The first may do everything, the others what they are granted.
const USERS: [&str; 3] = ["admin", "observer", "nobody"];

/// An API server on loopback of the network namespace of the thread that started it.
pub struct ControlPlane {
    server: Option<Process>,
    _etcd: Process,
    _database: TempDir,
    api: Api,
    directory: Directory,
}

impl ControlPlane {
    /// One with the defaults that matter here, dual-stack and RBAC; ready to be written to.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// The same with further flags of kube-apiserver.
    #[track_caller]
    pub fn with(flags: &[&str]) -> Self {
        Self::on("127.0.0.1", flags)
    }

    /// The same on another address of the namespace, which others may reach.
    #[track_caller]
    pub fn on(address: &str, flags: &[&str]) -> Self {
        let directory = Directory::new();
        let database = TempDir::with_prefix("portreeve-lab-etcd-").expect("a directory");
        let mut etcd = start_etcd(&database, &directory);
        let mut server = start_server(&directory, address, flags);
        for user in USERS {
            write_kubeconfig(&directory, address, user);
        }
        etcd.wait_for("etcd", || http_get("127.0.0.1:2379", "/readyz"));
        let admin = directory.path().join("admin.kubeconfig");
        let api = server.wait_for("API server", || {
            let api = Api::of(&admin)?;
            let namespaces = ["", "/default", "/kube-system"].map(|it| format!("/api/v1/namespaces{it}"));
            let ready = api.text("/readyz").is_some() && namespaces.iter().all(|path| api.text(path).is_some());
            ready.then_some(api)
        });
        Self { server: Some(server), _etcd: etcd, _database: database, api, directory }
    }

    /// Asks as `admin`.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// A kubeconfig of `admin`, `observer` or `nobody`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.directory.path().join(format!("{user}.kubeconfig"))
    }

    /// The certificates by which clients know the server.
    pub fn authority(&self) -> PathBuf {
        authority(&self.directory)
    }

    /// Waits until `probe` has an answer: some changes are in force a moment after they were accepted.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        self.server.as_mut().expect("an API server").wait_for(what, probe)
    }

    /// Ends the API server.
    pub fn kill(&mut self) {
        self.server = None;
    }
}

fn start_etcd(database: &TempDir, directory: &Directory) -> Process {
    let flags = [
        &format!("--data-dir={}", database.path().display()),
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ];
    Process::start("etcd", &flags.map(ToOwned::to_owned), directory.path())
}

fn start_server(directory: &Directory, address: &str, flags: &[&str]) -> Process {
    let tokens: String = USERS
        .iter()
        .enumerate()
        .map(|(uid, user)| format!("{user},{user},{uid},\"{}\"\n", if uid == 0 { "system:masters" } else { "lab" }))
        .collect();
    let tokens = directory.write("tokens.csv", &tokens);
    let key = new_key(directory);
    let ours = [
        "--etcd-servers=http://127.0.0.1:2379",
        &format!("--bind-address={address}"),
        // Without a default route there is no address to guess.
        "--advertise-address=192.0.2.1",
        "--endpoint-reconciler-type=none",
        "--cert-dir=certificates",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
        &format!("--token-auth-file={tokens}"),
        &format!("--service-account-key-file={key}"),
        &format!("--service-account-signing-key-file={key}"),
    ];
    let flags: Vec<String> = ours.iter().chain(flags).map(|it| (*it).to_owned()).collect();
    Process::start("kube-apiserver", &flags, directory.path())
}

fn authority(directory: &Directory) -> PathBuf {
    directory.path().join("certificates/apiserver.crt")
}

/// A key that signs the tokens of service accounts.
fn new_key(directory: &Directory) -> String {
    let output = Command::new("openssl").args(["ecparam", "-name", "prime256v1", "-genkey", "-noout"]).output();
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory.write("service-accounts.key", &String::from_utf8(output.stdout).expect("a PEM file"))
}

fn write_kubeconfig(directory: &Directory, address: &str, user: &str) {
    let authority = authority(directory);
    directory.write(
        &format!("{user}.kubeconfig"),
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
             contexts: [{{name: lab, context: {{cluster: lab, user: {user}}}}}]\n\
             clusters: [{{name: lab, cluster: {{server: \"https://{address}:6443\", certificate-authority: {}}}}}]\n\
             users: [{{name: {user}, user: {{token: {user}}}}}]\n",
            authority.display()
        ),
    );
}
