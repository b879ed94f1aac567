//! etcd and kube-apiserver.

use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    api::Api,
    directory::Directory,
    etcd::{self, Etcd},
    lent::{self, Loan},
    process::{FEWER_COLLECTIONS, Process},
};

const KEY: &str = "service-accounts.key";
/// The message of the panic if a test in a guest needs etcd or the API server's process.
const LENT: &str = "programs of its own: a guest borrows what the machine runs";
/// The users. Each name is also the user's token. `admin` has all rights, and a test grants rights to the other users.
const USERS: [&str; 3] = ["admin", "observer", "nobody"];

/// An API server on loopback, in the network namespace of the thread that started it.
pub struct ControlPlane {
    /// `None` in a guest (a virtual machine), which uses an API server of the machine.
    programs: Option<Programs>,
    _loan: Option<Loan>,
    api: Api,
    directory: Directory,
}

struct Programs {
    server: Option<Process>,
    /// The API server's name in `tools/versions`.
    program: &'static str,
    flags: Vec<String>,
    etcd: Etcd,
}

impl ControlPlane {
    pub const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 6443);

    /// Starts an API server with both IP families and RBAC, and waits until it is ready. For a test in a guest, the API
    /// server runs outside of the guest, and the test cannot stop it.
    #[track_caller]
    pub fn start() -> Self {
        match lent::borrow() {
            Some(loan) => Self::borrowed(loan),
            None => Self::with(&[]),
        }
    }

    #[track_caller]
    pub fn with(flags: &[&str]) -> Self {
        Self::on("127.0.0.1", flags)
    }

    /// Starts an API server on a given address of the namespace, so that other hosts can reach the API server.
    #[track_caller]
    pub fn on(address: &str, flags: &[&str]) -> Self {
        Self::of_program("kube-apiserver", address, flags)
    }

    /// The oldest API server that Portreeve supports.
    #[track_caller]
    pub fn of_the_oldest_server() -> Self {
        Self::of_program("kube-apiserver-1.33.13", "127.0.0.1", &[])
    }

    #[track_caller]
    fn of_program(program: &'static str, address: &str, flags: &[&str]) -> Self {
        let directory = Directory::new();
        let mut etcd = Etcd::start(directory.path());
        new_key(&directory);
        let address_flag = format!("--bind-address={address}");
        let flags: Vec<String> = [address_flag.as_str()].iter().chain(flags).map(|it| (*it).to_owned()).collect();
        let mut server = start_server(program, &directory, &flags);
        for user in USERS {
            write_kubeconfig(&directory, address, user);
        }
        etcd.wait_until_ready();
        let api = ready(&mut server, &directory);
        let programs = Programs { server: Some(server), program, flags, etcd };
        Self { programs: Some(programs), _loan: None, api, directory }
    }

    #[track_caller]
    fn borrowed(loan: Loan) -> Self {
        let directory = Directory::new();
        let authority = authority(&directory);
        fs::create_dir_all(authority.parent().expect("a folder")).expect("a folder");
        fs::write(authority, &loan.authority).expect("a certificate");
        for user in USERS {
            write_kubeconfig(&directory, &Self::SERVER.0.to_string(), user);
        }
        let api = Api::of(&kubeconfig(&directory, USERS[0])).expect("it is ready");
        Self { programs: None, _loan: Some(loan), api, directory }
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        kubeconfig(&self.directory, user)
    }

    pub fn authority(&self) -> PathBuf {
        authority(&self.directory)
    }

    /// Repeats `probe`, because some changes take effect a moment after the server has accepted them.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        self.server().as_mut().expect("an API server").wait_for(what, probe)
    }

    pub fn kill(&mut self) {
        *self.server() = None;
    }

    /// Freezes the API server: connections stay open without an answer.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    #[track_caller]
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    #[track_caller]
    pub fn restart(&mut self) {
        let mut server = self.start_again();
        self.api = ready(&mut server, &self.directory);
        *self.server() = Some(server);
    }

    /// Starts the API server again with a certificate from a new authority, and with another key for the tokens of
    /// service accounts. Clients then need the new authority, and service accounts need new tokens.
    #[track_caller]
    pub fn restart_rotated(&mut self) {
        self.kill();
        fs::remove_dir_all(self.certificates()).expect("certificates");
        new_key(&self.directory);
        self.restart();
    }

    /// Kills the API server, and starts an API server that accepts connections but never answers until [`Self::thaw`].
    #[track_caller]
    pub fn restart_hung(&mut self) {
        let mut server = self.start_again();
        server.wait_for("open port", || TcpStream::connect(Self::SERVER).ok());
        server.signal(Signal::SIGSTOP);
        *self.server() = Some(server);
    }

    /// Compacts etcd: after a restart of the API server, a watch from an earlier version gets the status 410.
    #[track_caller]
    pub fn compact(&self) {
        let etcd = self.etcd();
        let ask =
            |path: &str, question: &Value| etcd.post(path, question).unwrap_or_else(|refusal| panic!("{refusal}"));
        let now = ask("/v3/kv/range", &json!({"key": "AA=="}))["header"]["revision"].clone();
        ask("/v3/kv/compaction", &json!({"revision": now, "physical": true}));
    }

    /// Writes a Service directly into etcd, as the restore of a wrong backup does.
    #[track_caller]
    pub fn restore_service(&self, service: &Value) {
        let name = service["metadata"]["name"].as_str().expect("a name");
        let put = json!({
            "key": base64(&format!("/registry/services/specs/default/{name}")),
            "value": base64(&service.to_string()),
        });
        self.etcd().post("/v3/kv/put", &put).unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// A client of etcd, for changes that the API server would not allow.
    #[track_caller]
    pub fn etcd(&self) -> Api {
        assert!(self.programs.is_some(), "{LENT}");
        Api::at(&format!("http://{}", etcd::PLACE))
    }

    #[track_caller]
    pub fn store(&mut self) -> &mut Etcd {
        &mut self.programs.as_mut().expect(LENT).etcd
    }

    #[track_caller]
    pub fn write_service_account(&self, account: &str, directory: &Path) {
        self.write_authority(directory);
        fs::write(directory.join("namespace"), "default").expect("a file");
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let answer = self.api.post(&path, &request).unwrap_or_else(|refusal| panic!("{refusal}"));
        fs::write(directory.join("token"), answer["status"]["token"].as_str().expect("a token")).expect("a file");
    }

    #[track_caller]
    pub fn write_authority(&self, directory: &Path) {
        fs::copy(self.certificates().join("apiserver.crt"), directory.join("ca.crt")).expect("a certificate");
    }

    /// Kills the API server, and starts the same program with the same flags.
    #[track_caller]
    fn start_again(&mut self) -> Process {
        self.kill();
        let Programs { program, flags, .. } = self.programs();
        start_server(program, &self.directory, flags)
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        self.programs().server.as_ref().expect("an API server").signal(signal);
    }

    #[track_caller]
    fn programs(&self) -> &Programs {
        self.programs.as_ref().expect(LENT)
    }

    #[track_caller]
    fn server(&mut self) -> &mut Option<Process> {
        &mut self.programs.as_mut().expect(LENT).server
    }

    fn certificates(&self) -> PathBuf {
        self.directory.path().join("certificates")
    }
}

/// etcd's JSON requests need keys and values in base64.
fn base64(text: &str) -> String {
    let mut encoder = Command::new("openssl");
    encoder.args(["base64", "-A"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut encoder = encoder.spawn().expect("openssl is installed");
    encoder.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    String::from_utf8(encoder.wait_with_output().expect("it ends").stdout).expect("ASCII")
}

/// Waits until the API server is ready and has its first namespaces. Returns a client of `admin`.
#[track_caller]
fn ready(server: &mut Process, directory: &Directory) -> Api {
    let admin = kubeconfig(directory, USERS[0]);
    server.wait_for("API server", || {
        let api = Api::of(&admin)?;
        let namespaces = ["", "/default", "/kube-system"].map(|it| format!("/api/v1/namespaces{it}"));
        let ready = api.text("/readyz").is_some() && namespaces.iter().all(|path| api.text(path).is_some());
        ready.then_some(api)
    })
}

fn start_server(program: &str, directory: &Directory, flags: &[String]) -> Process {
    let tokens: String = USERS
        .iter()
        .enumerate()
        .map(|(uid, user)| format!("{user},{user},{uid},\"{}\"\n", if uid == 0 { "system:masters" } else { "lab" }))
        .collect();
    let tokens = directory.write("tokens.csv", &tokens);
    let key = directory.path().join(KEY).display().to_string();
    let ours = [
        "--etcd-servers=http://127.0.0.1:2379",
        // Without a default route, kube-apiserver cannot guess an address.
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
    let flags: Vec<String> = ours.map(str::to_owned).into_iter().chain(flags.iter().cloned()).collect();
    Process::start_by(&FEWER_COLLECTIONS.map(str::to_owned), program, &flags, directory.path())
}

fn kubeconfig(directory: &Directory, user: &str) -> PathBuf {
    directory.path().join(format!("{user}.kubeconfig"))
}

fn authority(directory: &Directory) -> PathBuf {
    directory.path().join("certificates/apiserver.crt")
}

fn new_key(directory: &Directory) {
    let output = Command::new("openssl").args(["ecparam", "-name", "prime256v1", "-genkey", "-noout"]).output();
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory.write(KEY, &String::from_utf8(output.stdout).expect("a PEM file"));
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
