//! `portreeve agent` while the API server is frozen, dead, hung, out of reach, forgetful, or replaced by another server.

use std::time::Instant;

use serde_json::json;

use super::{FOUND, RESOLVED, RULE, SERIES, age, age_of, errors, squat, until_found, until_told};
use crate::{
    look::Look,
    parts::{Agent, ControlPlane, Proxy, Relay, Wired, cluster, objects, serve, until},
};

/// The resources that the agent watches all the time. The agent reads Nodes and settings only at intervals.
const WATCHED: [&str; 2] = ["services", "pods"];
/// Facts that are older than this number of seconds (twice the default time limit of a request) show an outage.
const LONG: f64 = 20.0;

/// One pod serves all Services.
#[track_caller]
fn cluster_with(services: &[(&str, u16)]) -> (ControlPlane, Proxy) {
    let cluster = cluster();
    for (name, port) in services {
        serve(&cluster, name, Some(*port));
    }
    let proxy = Proxy::start(&cluster, "iptables", &json!({}));
    (cluster, proxy)
}

fn settled(agent: &Agent) -> f64 {
    let exposition = agent.metrics();
    let of = |result| Agent::value(&exposition, &format!("portreeve_events_total{{result=\"{result}\"}}"));
    ["written", "deduplicated"].into_iter().filter_map(of).sum()
}

fn scans(exposition: &str) -> f64 {
    Agent::value(exposition, "portreeve_scans_total").expect("scans are counted")
}

#[track_caller]
fn until_old(agent: &Agent, age_wanted: f64) {
    until("old view", || {
        let exposition = agent.metrics();
        WATCHED.iter().all(|resource| age_of(&exposition, resource) >= age_wanted).then_some(())
    });
}

/// Fault (API server): kube-apiserver is frozen (SIGSTOP) with every connection open
/// Does: still scans the node; finds new listeners
/// Right again: Events are written as soon as the server continues
/// Lost: nothing
///
/// Fault (API server): kube-apiserver is killed (SIGKILL)
/// Does: keeps its facts, whose age grows in `portreeve_watch_age_seconds`; raises and clears findings; stays alive and
/// ready
/// Right again: once the server is back, every change of the outage is an Event
/// Lost: nothing
///
/// Fault (API server): kube-apiserver accepts connections and never answers
/// Does: counts `timed-out`, still scans
/// Right again: once the server answers, its facts are current
/// Lost: nothing
#[test]
fn detection_goes_on_while_the_server_is_frozen_dead_and_hung() {
    let _wired = Wired::enter();
    let (mut cluster, _proxy) = cluster_with(&[("stays", 30080), ("goes", 30081), ("comes", 30082), ("late", 30083)]);
    let agent = Agent::start(&cluster, &["--request-timeout", "2s"]);
    let (_stays, goes) = (squat(30080), squat(30081));
    until_told(&cluster, &[("goes", FOUND), ("stays", FOUND)]);
    let before = scans(&agent.metrics());

    cluster.freeze();
    let comes = squat(30082);
    until_found(&agent, &[30080, 30081, 30082]);
    until_old(&agent, 5.0);
    cluster.thaw();
    // The server may write an Event after the agent's time-out. Then the agent finds the Event with its next request.
    until("answer about the third Event", || (settled(&agent) >= 3.0).then_some(()));
    let mut wanted = vec![("comes", FOUND), ("goes", FOUND), ("stays", FOUND)];
    until_told(&cluster, &wanted);

    cluster.kill();
    let _late = squat(30083);
    drop(goes);
    until_found(&agent, &[30080, 30082, 30083]);
    until_old(&agent, LONG);
    assert!(errors(&agent, "unreachable") >= 2.0 && agent.is_well(), "{}", agent.metrics());

    cluster.restart_hung();
    until("time-out", || (errors(&agent, "timed-out") >= 1.0).then_some(()));
    drop(comes);
    until_found(&agent, &[30080, 30083]);
    assert!(agent.is_well(), "kubelet would restart it");

    cluster.restart();
    until("young view", || {
        let exposition = agent.metrics();
        WATCHED.iter().all(|resource| age_of(&exposition, resource) < LONG).then_some(())
    });
    wanted.extend([("comes", RESOLVED), ("goes", RESOLVED), ("late", FOUND)]);
    until_told(&cluster, &wanted);
    assert_eq!(agent.found(RULE), [30080, 30083]);
    assert!(scans(&agent.metrics()) > before && agent.is_well(), "the same process all the time");
    drop(agent);
}

/// Fault (API server): the connection to the server is cut while Services come and go
/// Does: keeps the findings about objects that the agent cannot read
/// Right again: within three scans after it has read all objects again
/// Lost: nothing
///
/// Fault (API server): etcd is compacted and the server restarted while an agent is not connected (410)
/// Does: counts 410, reads all objects again
/// Right again: within three scans after it has read all objects again
/// Lost: nothing
#[test]
fn what_changed_out_of_sight_is_right_within_two_scans_although_the_server_has_forgotten() {
    let _wired = Wired::enter();
    let relay = Relay::start();
    let (mut cluster, _proxy) = cluster_with(&[("stays", 30080), ("deleted", 30081)]);
    let agent = Agent::start(&cluster, &["--apiserver", Relay::URL]);
    let _squatters = [30080, 30081, 30082, 30083].map(squat);
    until_told(&cluster, &[("deleted", FOUND), ("stays", FOUND)]);

    relay.cut();
    cluster.api().delete(&objects::service("deleted", &[]));
    for (name, port) in [("new", 30082), ("newer", 30083)] {
        serve(&cluster, name, Some(port));
    }
    cluster.compact();
    cluster.restart();
    until("failure", || (errors(&agent, "unreachable") >= 1.0).then_some(()));
    assert_eq!(agent.found(RULE), [30080, 30081], "what is not seen does not change");

    relay.mend();
    let mended = Instant::now();
    let (mut seen, mut right) = (None, None);
    until("right findings", || {
        let since = mended.elapsed().as_secs_f64();
        let exposition = agent.metrics();
        let mut watched = WATCHED.iter().chain(&["endpointslices"]);
        let whole = watched.all(|resource| age_of(&exposition, resource) < since);
        let found = Agent::value(&exposition, SERIES);
        seen = seen.or(whole.then(|| scans(&exposition)));
        right = right.or((found == Some(3.0)).then(|| scans(&exposition)));
        seen.and(right)
    });
    let late = right.expect("a scan") - seen.expect("a scan");
    // The agent needs two scans. The change of the cluster starts one more scan between these two scans.
    assert!(late <= 3.0, "right {late} scans after everything was read again");
    assert_eq!(agent.found(RULE), [30080, 30082, 30083]);
    assert!(errors(&agent, "410") >= 1.0, "{}", agent.metrics());
    until_told(
        &cluster,
        &[("deleted", FOUND), ("deleted", RESOLVED), ("new", FOUND), ("newer", FOUND), ("stays", FOUND)],
    );
    assert!(agent.is_well());
    drop(agent);
}

/// Fault (API server): a new authority signs the server's certificate
/// Does: refuses the server until the agent's CA file has the new authority's certificate
/// Right again: after the file is written; no restart
/// Lost: nothing
///
/// Fault (API server): the service account’s token is refused (401), then the token's file is rewritten
/// Does: reads the token's file again after every failure
/// Right again: after the file is written; no restart
/// Lost: nothing
///
/// Fault (API server): connections to the Service of the API server fail
/// Does: connects to `--apiserver`, and requires the same certificate
/// Right again: at once
/// Lost: nothing
#[test]
fn a_pod_takes_up_a_new_authority_and_a_new_token_and_needs_no_service_to_reach_the_server() {
    let _wired = Wired::enter();
    let relay = Relay::start();
    let (mut cluster, _proxy) = cluster_with(&[("web", 30080), ("late", 30081)]);
    let meta = json!({"name": "portreeve", "namespace": "default"});
    cluster.api().create(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}));
    cluster.api().create(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "portreeve-in-a-pod"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "portreeve"},
        "subjects": [{"kind": "ServiceAccount", "name": "portreeve", "namespace": "default"}],
    }));
    let files = tempfile::TempDir::with_prefix("portreeve-lab-").expect("a directory");
    cluster.write_service_account("portreeve", files.path());
    let agent = Agent::in_pod(files.path(), &["--apiserver", Relay::URL]);
    let _web = squat(30080);
    until_told(&cluster, &[("web", FOUND)]);

    // Only a new connection checks the server's certificate, so the test cuts the open connections.
    relay.cut();
    cluster.restart_rotated();
    let refused = errors(&agent, "unreachable");
    relay.mend();
    until("certificate that is refused", || (errors(&agent, "unreachable") >= refused + 2.0).then_some(()));
    assert_eq!((errors(&agent, "401"), agent.found(RULE)), (0.0, vec![30080]));
    cluster.write_authority(files.path());
    until("token that is refused", || (errors(&agent, "401") >= 1.0).then_some(()));
    assert_eq!(agent.found(RULE), [30080]);
    let old = agent.metrics();
    cluster.write_service_account("portreeve", files.path());
    until("young view", || (age(&agent.metrics()) < age(&old)).then_some(()));

    let _late = squat(30081);
    until_told(&cluster, &[("late", FOUND), ("web", FOUND)]);
    drop(agent);
}

#[test]
fn one_look_goes_another_way_to_the_same_server() {
    let _wired = Wired::enter();
    let relay = Relay::start();
    let (cluster, _proxy) = cluster_with(&[("web", 30080)]);
    let _web = squat(30080);
    let look = Look::check_with(&["--apiserver", Relay::URL], &cluster.kubeconfig("observer"));
    assert_eq!((look.findings(RULE).len(), look.code), (1, 1));
    drop(relay);
    let look = Look::check_with(&["--apiserver", Relay::URL], &cluster.kubeconfig("observer"));
    assert_eq!(look.code, 2, "no other way is tried");
}
