//! Control planes that one test after the other borrows: to start one takes two seconds of a processor.
//!
//! Each has a place, a directory with a lock that its borrower holds; a keeper holds its network namespace. It is given
//! back the state of its beginning before it is used, so that it does not matter how the last borrower ended.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use super::{
    agent::until,
    api::Api,
    control_plane::{self, ControlPlane, base64},
    etcd,
    lent::Loan,
    programs,
    relay::Relay,
};

/// A variable with the directory of the pool.
const POOL: &str = "PORTREEVE_LENT";
const KEEPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/keeper");
/// Keys of etcd, but for what the API server writes all the time about itself.
const RANGES: [[&str; 2]; 3] = [
    ["/registry/", "/registry/leases/kube-system/apiserver-"],
    ["/registry/leases/kube-system/apiserver.", "/registry/masterleases/"],
    ["/registry/masterleases0", "/registry0"],
];
/// etcd takes 128 changes at once.
const AT_ONCE: usize = 100;

/// What etcd has: values by their keys, both in base64.
type State = BTreeMap<String, String>;

/// The directory of the pool, where there is one.
pub fn directory() -> Option<PathBuf> {
    env::var_os(POOL).map(PathBuf::from)
}

/// Borrows a control plane of a pool, which answers on the listener; it is started where none is free.
#[track_caller]
pub fn borrow(pool: &Path, listener: TcpListener) -> Loan {
    let (place, lock) =
        (0..).find_map(|number| locked(pool.join(number.to_string()))).expect("there is always one more");
    // The calling thread is in the test's namespace.
    let entering = thread::spawn(move || {
        let namespace = namespace(&place).unwrap_or_else(|| started(&place));
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("root may enter it");
        let admin = kubeconfig(&place);
        let api = until("API server", || Api::of(&admin).filter(control_plane::is_ready));
        begin_anew(&place.join("beginning"), &api);
        let authority = fs::read_to_string(control_plane::authority(&place)).expect("certificates");
        Loan { authority, _relay: Relay::between(listener, ControlPlane::SERVER.into()), _held: lock.into() }
    });
    entering.join().expect("a control plane of the pool")
}

/// A place with its lock, unless somebody else has that.
fn locked(place: PathBuf) -> Option<(PathBuf, File)> {
    fs::create_dir_all(&place).expect("a place");
    let lock = File::options().create(true).append(true).open(place.join("lock")).expect("a lock");
    lock.try_lock().ok()?;
    Some((place, lock))
}

/// The network namespace of a place's keeper, if it lives.
fn namespace(place: &Path) -> Option<File> {
    let pid = fs::read_to_string(place.join("pid")).ok()?;
    let of_keeper = |name: &str| Path::new("/proc").join(pid.trim()).join(name);
    let words = fs::read_to_string(of_keeper("cmdline")).ok()?;
    let is_it = words.split('\0').any(|word| Path::new(word) == place);
    if is_it { File::open(of_keeper("ns/net")).ok() } else { None }
}

/// Starts a keeper, which outlives the test.
fn started(place: &Path) -> File {
    for left in ["pid", "beginning"] {
        fs::remove_file(place.join(left)).ok();
    }
    control_plane::new_key(place);
    let flags = control_plane::server_flags(place, &["--bind-address=127.0.0.1".to_owned()]);
    let mut keeper = Command::new("setsid");
    keeper.args(["--fork", "unshare", "--net", "--", KEEPER]).arg(place);
    keeper.args(["etcd", "kube-apiserver"].map(programs::find)).args(flags);
    // nextest waits for whoever holds what a test prints to.
    let status = keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(status.expect("setsid of util-linux is installed").success());
    until("keeper", || namespace(place))
}

/// The kubeconfig of `admin` for a place.
fn kubeconfig(place: &Path) -> PathBuf {
    let file = place.join("kubeconfig");
    control_plane::write_kubeconfig(&file, &control_plane::authority(place), "127.0.0.1", "admin");
    file
}

/// Takes back whatever was changed since the beginning, or takes it down where this is the beginning.
fn begin_anew(beginning: &Path, api: &Api) {
    let etcd = Api::at(&format!("http://{}", etcd::PLACE));
    let Ok(text) = fs::read(beginning) else {
        let state = settled(&etcd);
        let new = beginning.with_extension("new");
        fs::write(&new, serde_json::to_vec(&state).expect("JSON")).expect("a file");
        return fs::rename(new, beginning).expect("a file");
    };
    let then: State = serde_json::from_slice(&text).expect("JSON");
    let now = state(&etcd);
    let new = now.keys().filter(|key| !then.contains_key(*key));
    let new = new.map(|key| json!({"request_delete_range": {"key": key}}));
    let other = then.iter().filter(|(key, value)| now.get(*key) != Some(value));
    let other = other.map(|(key, value)| json!({"request_put": {"key": key, "value": value}}));
    let changes: Vec<Value> = new.chain(other).collect();
    for changes in changes.chunks(AT_ONCE) {
        let answer =
            etcd.post("/v3/kv/txn", &json!({"success": changes})).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(answer["succeeded"], true, "{answer:#}");
    }
    has_heard(api);
}

/// What etcd has once the API server has made what it makes by itself.
fn settled(etcd: &Api) -> State {
    let mut before = state(etcd);
    loop {
        thread::sleep(Duration::from_millis(300));
        let now = state(etcd);
        if now == before {
            return now;
        }
        before = now;
    }
}

fn state(etcd: &Api) -> State {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ranges = RANGES.iter().flat_map(|range| {
        let [key, end] = range.map(base64);
        let range = json!({"key": key, "range_end": end});
        let mut answer = etcd.post("/v3/kv/range", &range).unwrap_or_else(|refusal| panic!("{refusal}"));
        let entries = answer["kvs"].as_array_mut().map(std::mem::take).unwrap_or_default();
        entries.into_iter().map(|it| (word(&it["key"]), word(&it["value"])))
    });
    ranges.collect()
}

/// Waits until the API server knows who may do what: it hears of roles and bindings in their order, so that it knows
/// what was there before once it knows of new ones.
fn has_heard(api: &Api) {
    let group = "rbac.authorization.k8s.io";
    let (name, user) = ("lent-anew", "lent-anew");
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let objects = [("ClusterRole", None), ("Role", Some("default"))].map(|(kind, namespace)| {
        let mut metadata = json!({"name": name});
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata, "rules": rules});
        let subject = format!("{user}-{kind}");
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": subject}],
        });
        (role, binding, subject)
    });
    for (role, binding, subject) in &objects {
        api.create(role);
        api.create(binding);
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
            "spec": {"user": subject, "resourceAttributes": {"namespace": "default", "resource": "pods", "verb": "get"}},
        });
        until("role in force", || (api.create(&review)["status"]["allowed"] == true).then_some(()));
    }
    for (role, binding, _) in &objects {
        api.delete(binding);
        api.delete(role);
    }
}
