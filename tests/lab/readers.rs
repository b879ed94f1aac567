//! The tests check which users can read an agent's facts over the network: directly with a token, or through the API
//! server's proxy. The real API server decides.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::parts::{
    Agent, ControlPlane, PRIMARY, Plugin, directory::Directory, enter_alone, http_status, http_status_from, kubectl,
    objects, until,
};

/// The address and port of the agent, and of the Pod that stands for the agent.
const PLACE: &str = "192.0.2.1:29517";
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/install.yaml");

/// A cluster with the objects of `deploy/install.yaml`, and an agent with the rights of the file's ServiceAccount.
pub struct World {
    pub cluster: ControlPlane,
    agent: Agent,
    directory: Directory,
}

impl World {
    #[track_caller]
    fn new() -> Self {
        enter_alone();
        Self::of(ControlPlane::start())
    }

    #[track_caller]
    pub fn of(cluster: ControlPlane) -> Self {
        cluster.api().create(&objects::node("n1", &PRIMARY));
        kubectl(&cluster, &["apply", "-f", MANIFEST]);
        let directory = Directory::new();
        let kubeconfig = kubeconfig(&cluster, &directory, &token(&cluster, "portreeve", None));
        let agent = Agent::with(&kubeconfig, "n1", PLACE, &["--proxy-mode", "iptables"]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "portreeve-n1", "namespace": "portreeve",
                         "labels": {"app.kubernetes.io/name": "portreeve"}},
            "spec": {"nodeName": "n1", "hostNetwork": true, "serviceAccountName": "portreeve", "containers": [{"name": "portreeve", "image": "portreeve",
                     "ports": [{"name": "http", "containerPort": 29517, "hostPort": 29517}]}]},
        });
        cluster.api().create(&pod);
        let status = json!({"status": {"phase": "Running", "podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}],
                                       "conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = ["patch", "pod", "portreeve-n1", "-n", "portreeve", "--subresource=status", "--type=merge", "-p"];
        kubectl(&cluster, &[&patch[..], &[&status.to_string()]].concat());
        Self { cluster, agent, directory }
    }

    fn status(&self, path: &str, headers: &str) -> u16 {
        http_status(PLACE, path, headers).unwrap_or_else(|| panic!("no answer to {path}"))
    }

    #[track_caller]
    fn grant(&mut self, user: &str, rules: &Value) {
        let api = "rbac.authorization.k8s.io";
        let metadata = json!({"name": user, "namespace": "portreeve"});
        let role = json!({"apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": rules});
        self.cluster.api().create(&role);
        self.cluster.api().create(&json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
        }));
        let plugin = Plugin::of(&self.cluster.kubeconfig(user));
        self.cluster.wait_for("role in force", || (plugin.types("kubectl get pods -n portreeve").0 == 0).then_some(()));
    }
}

/// Without an audience, the token is for the API server.
#[track_caller]
fn token(cluster: &ControlPlane, account: &str, audience: Option<&str>) -> String {
    let audience = audience.map(|audience| format!("--audience={audience}"));
    let words = ["create", "token", account, "-n", "portreeve"];
    let words: Vec<&str> = words.into_iter().chain(audience.as_deref()).collect();
    kubectl(cluster, &words).trim().to_owned()
}

fn kubeconfig(cluster: &ControlPlane, directory: &Directory, token: &str) -> PathBuf {
    let admin = fs::read_to_string(cluster.kubeconfig("admin")).expect("a kubeconfig");
    assert!(admin.contains("{token: admin}"), "{admin}");
    directory.write("agent.kubeconfig", &admin.replace("{token: admin}", &format!("{{token: {token}}}"))).into()
}

fn rules(names: &[&str]) -> Value {
    let all = [
        ("pods", json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})),
        ("proxy", json!({"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]})),
        (
            "token",
            json!({"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["portreeve-reader"],
                   "verbs": ["create"]}),
        ),
    ];
    all.into_iter().filter(|(name, _)| names.contains(name)).map(|(_, rule)| rule).collect()
}

#[test]
fn only_a_token_for_agents_whose_user_may_read_opens_findings_and_snapshots() {
    let world = World::new();
    let cluster = &world.cluster;
    cluster.api().create(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
                                 "metadata": {"name": "stranger", "namespace": "portreeve"}}));
    let reader = token(cluster, "portreeve-reader", Some("portreeve/n1"));
    let of_the_api_server = token(cluster, "portreeve-reader", None);
    let of_another_node = token(cluster, "portreeve-reader", Some("portreeve/n2"));
    let of_another_service = token(cluster, "portreeve-reader", Some("vault"));
    let of_a_stranger = token(cluster, "stranger", Some("portreeve/n1"));
    let of_the_agent = token(cluster, "portreeve", None);
    let (head, signature) = reader.rsplit_once('.').expect("a signature");
    let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
    for path in ["/findings", "/snapshot"] {
        let status = |token: &str| world.status(path, &format!("Portreeve-Token: {token}\r\n"));
        assert_eq!(world.status(path, ""), 401, "no token");
        assert_eq!(status(&reader), 200);
        assert_eq!(world.status(path, &format!("Authorization: Bearer {reader}\r\n")), 200);
        assert_eq!(status(&reader), 200, "again");
        assert_eq!(status(&of_a_stranger), 403, "a user who may not read");
        assert_eq!(status(&of_the_api_server), 401, "meant for the API server");
        // Waits, because the agent starts only a limited number of reviews in a few seconds.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(status(&of_another_node), 401, "meant for the agent of another node");
        assert_eq!(status(&of_another_service), 401, "meant for somebody else");
        assert_eq!(status(&of_the_agent), 401, "the agent's own");
        assert_eq!(status(&forged), 401, "nobody signed it");
        for junk in ["admin", "a.b.c", ""] {
            assert_eq!(status(junk), 401, "{junk:?}");
        }
    }
    for path in ["/", "/metrics", "/livez", "/readyz"] {
        assert_eq!(world.status(path, ""), 200, "{path} is for everybody");
    }
    let plugin = Plugin::of(&kubeconfig(cluster, &world.directory, &reader));
    assert_ne!(plugin.types("kubectl get pods -n portreeve").0, 0, "the API server does not take it");
}

#[test]
fn a_flood_of_tokens_is_no_flood_of_requests_to_the_api_server() {
    let world = World::new();
    let reviews = || {
        let metrics = world.cluster.api().text("/metrics").expect("metrics");
        let lines = metrics.lines().filter(|it| it.starts_with("apiserver_request_total{") && it.contains("reviews\""));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
    };
    let memory = || Agent::value(&world.agent.metrics(), "process_resident_memory_bytes").expect("a size");
    let (before, resting) = (reviews(), memory());
    let token = token(&world.cluster, "portreeve-reader", Some("portreeve/n1"));
    let reader = || world.status("/findings", &format!("Portreeve-Token: {token}\r\n"));
    assert_eq!(reader(), 200);
    let (begun, over) = (std::time::Instant::now(), AtomicBool::new(false));
    let flood = &|source: u8| {
        let mut statuses = BTreeMap::<u16, u32>::new();
        for number in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let junk = format!("Portreeve-Token: {number:016}.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJlLXNpZ25hdHVyZQ\r\n");
            // If there are many connections, the agent may end the oldest connection.
            let status = http_status_from([127, 0, 0, source], PLACE, "/findings", &junk).unwrap_or(429);
            *statuses.entry(status).or_default() += 1;
        }
        statuses
    };
    let (statuses, later) = thread::scope(|scope| {
        let floods = [2, 3, 4].map(|source| scope.spawn(move || flood(source)));
        thread::sleep(Duration::from_secs(5));
        // The agent allowed this user's token within the last minute.
        let again = || {
            thread::sleep(Duration::from_secs(1));
            reader()
        };
        let later: Vec<u16> = (0..12).map(|_| again()).collect();
        over.store(true, Ordering::Relaxed);
        let statuses = floods.map(|flood| flood.join().expect("no panic")).into_iter().flatten();
        let sums = statuses.fold(BTreeMap::<u16, u32>::new(), |mut sums, (status, count)| {
            *sums.entry(status).or_default() += count;
            sums
        });
        (sums, later)
    });
    assert_eq!(later, [200; 12], "a reader who was let in is let in again: {statuses:?}");
    let seconds = begun.elapsed().as_secs_f64();
    let asked = reviews() - before;
    // Each wrong token is reviewed once or twice, and the user's token is reviewed once more.
    assert!(asked >= 1.0 && asked <= 2.0 * (4.0 * seconds + 16.0), "{asked} reviews in {seconds} s: {statuses:?}");
    assert!(statuses[&429] > 300 && statuses.keys().all(|status| [401, 429].contains(status)), "{statuses:?}");
    assert!(memory() < 1.5 * resting, "{resting} bytes before, {} after", memory());
    assert!(world.agent.is_well());
}

#[test]
fn the_plugin_reads_with_three_rights_and_says_which_one_is_missing() {
    let mut world = World::new();
    world.grant("observer", &rules(&["pods", "proxy", "token"]));
    world.grant("nobody", &rules(&["pods", "proxy"]));
    let observer = Plugin::of(&world.cluster.kubeconfig("observer"));
    let (code, stdout, stderr) = observer.types("kubectl portreeve check -o json");
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert!(document["nodes"][0]["findings"].is_array(), "{document:#}");
    assert!([0, 1].contains(&code), "{document:#}");
    let (code, snapshot, stderr) = observer.types("kubectl portreeve snapshot n1");
    assert!(code == 0 && snapshot.contains("portreeve.snapshot/v1"), "{stderr}");

    // A snapshot has only the endpoints that rules need. The plugin reads other endpoints from the API server, if the
    // user may read them.
    let service = world.cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    world.cluster.api().create(&objects::endpoint_slice(&service, Some(("10.244.0.6", "n1")), "IPv4"));
    let owner = "kubectl portreeve owner 30080/tcp";
    until("Service at the agent", || observer.types(owner).1.contains("web").then_some(()));
    let (code, owned, stderr) = observer.types(owner);
    let words = owned.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        code == 2 && words.contains("EndpointSlices of Services with the name web were not requested"),
        "{owned}{stderr}"
    );
    let (code, owned, stderr) = Plugin::of(&world.cluster.kubeconfig("admin")).types(owner);
    assert!(code == 0 && !owned.contains("not known") && owned.contains("1 usable of 1"), "{owned}{stderr}");

    let nobody = Plugin::of(&world.cluster.kubeconfig("nobody"));
    let (code, stdout, _) = nobody.types("kubectl portreeve check -o json");
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    let detail = document["unknown"][0]["detail"].as_str().expect("a reason");
    assert_eq!(code, 2);
    assert!(detail.contains("serviceaccounts/portreeve-reader/token") && detail.contains("forbidden"), "{detail}");
    // The API server's proxy removes the user's token from the request to the agent.
    let proxied = "kubectl get --raw /api/v1/namespaces/portreeve/pods/portreeve-n1:29517/proxy/snapshot";
    let (code, stdout, stderr) = nobody.types(proxied);
    assert!(code != 0 && stdout.is_empty() && stderr.contains("a token is needed"), "{stdout}{stderr}");
}

#[test]
fn the_api_servers_proxy_keeps_the_credentials_of_the_user_and_hands_on_the_rest() {
    let world = World::new();
    let listener = TcpListener::bind("192.0.2.1:29000").expect("the port is free");
    let pod = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the proxy connects");
        let lines = BufReader::new(stream.try_clone().expect("a stream")).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("a client");
        head.join("\n").to_lowercase()
    });
    let path = "/api/v1/namespaces/portreeve/pods/portreeve-n1:29000/proxy/findings";
    let answered = world.cluster.api().text_with(path, "portreeve-token", "sent-along");
    assert!(answered.is_some(), "the pod answers");
    let head = pod.join().expect("a head");
    assert!(head.starts_with("get /findings ") && head.contains("portreeve-token: sent-along"), "{head}");
    for secret in ["authorization", "bearer", "admin", "x-remote-user", "impersonate"] {
        assert!(!head.contains(secret), "{secret}: {head}");
    }
}
