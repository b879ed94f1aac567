mod many;

use std::sync::Arc;

use super::*;
use crate::{
    findings::Scope,
    {
        expectations::{expect_healthy, expect_problem, expect_unknown, wanting},
        pods::OVERDUE,
    },
};
use portreeve_facts::{
    Controller, Protocol, WorkloadKind,
    healthy::{PRIMARY, SECOND, gap, ip, objects, seen},
};

fn name(namespace: &str, name: &str) -> Option<ServiceName> {
    Some(ServiceName { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn controller(kind: &str, name: &str) -> Option<Controller> {
    Some(Controller { kind: kind.to_owned(), name: name.to_owned() })
}

fn clash(holder: impl FnOnce(&mut Pod), waiter: impl FnOnce(&mut WaitingPod)) -> Snapshot {
    let mut world = Snapshot::healthy().pod("edge", |pod| {
        pod.host_port(8080, 80);
        holder(pod);
    });
    let port = ContainerPort { port: 80, host_port: Some(80), host_ip: None, protocol: Protocol::Tcp };
    let mut waiting = WaitingPod {
        namespace: "default".to_owned(),
        name: "late".to_owned(),
        uid: Some("uid-late".to_owned()),
        controller: controller("DaemonSet", "late"),
        service_lb_of: None,
        meant_for: Some("n1".to_owned()),
        everywhere: false,
        rejected: false,
        ports: vec![port],
        since: None,
    };
    waiter(&mut waiting);
    seen(&mut world.cluster.waiting_pods).push(waiting.into());
    world
}

fn subject() -> Subject {
    subject_of(&clash(|_| (), |_| ()))
}

fn subject_of(world: &Snapshot) -> Subject {
    super::subject(world, &world.cluster.waiting_pods.seen().expect("pods")[0])
}

#[track_caller]
fn silent(world: &Snapshot) {
    expect_healthy(&RULE, world, &subject());
}

fn ago(seconds: i64) -> Option<Timestamp> {
    Timestamp::from_second(Snapshot::healthy().at.as_second() - seconds).ok()
}

#[test]
fn who_has_the_port_is_named() {
    let evidence = expect_problem(&RULE, &clash(|_| (), |_| ()), &subject());
    assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Node));
    assert_eq!(
        evidence.summary,
        "Pod default/late cannot run on this node: hostPort 80/tcp is in the hands of pod default/edge."
    );
    let found = format!("{evidence:?}");
    assert!(found.contains("pod default/late") && found.contains("80/tcp on every address"), "{found}");
    let texts: Vec<_> = evidence.remedies.iter().map(|remedy| remedy.steps[0].text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "give pod default/late another port, in DaemonSet default/late",
            "give pod default/edge another port, in the object that declares its containers"
        ]
    );
    // A hostNetwork pod uses its container ports as ports of the node.
    let host = |pod: &mut Pod| {
        pod.host_network = true;
        pod.ports[0].port = 80;
        pod.ports[0].host_port = None;
    };
    expect_problem(&RULE, &clash(host, |_| ()), &subject());
    silent(&clash(
        |pod| {
            host(pod);
            pod.host_network = false;
        },
        |_| (),
    ));
}

#[test]
fn a_pod_that_may_run_anywhere_is_one_problem_of_the_cluster_in_the_same_words_everywhere() {
    let evidence = expect_problem(&RULE, &clash(|_| (), |waiting| waiting.meant_for = None), &subject());
    assert_eq!(evidence.scope, Scope::Cluster);
    assert_eq!(
        evidence.summary,
        "Pod default/late cannot run: hostPort 80/tcp is taken on every node that it could use."
    );
    assert!(evidence.values.contains(&("held by", "pod default/edge on n1".to_owned())), "{evidence:#?}");
}

#[test]
fn where_other_nodes_refuse_the_pod_for_other_reasons_whoever_has_the_port_here_is_not_asked_to_move() {
    let remedies = |everywhere| {
        let evidence = expect_problem(
            &RULE,
            &clash(|_| (), |waiting| (waiting.meant_for, waiting.everywhere) = (None, everywhere)),
            &subject(),
        );
        let doubt = evidence.values.iter().any(|(name, _)| *name == "not known");
        (evidence.remedies.len(), doubt)
    };
    assert_eq!((remedies(true), remedies(false)), ((2, false), (1, true)));
}

#[test]
fn everybody_who_has_the_port_is_named_and_asked_to_move() {
    let mut world = clash(|pod| pod.ports[0].host_ip = Some(ip(PRIMARY[0])), |_| ());
    world = world.pod("more", |pod| {
        pod.host_port(8080, 80);
        pod.ports[0].host_ip = Some(ip(SECOND[0]));
    });
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.ends_with("in the hands of pod default/edge, pod default/more."), "{evidence:#?}");
    assert_eq!(evidence.values.iter().filter(|(name, _)| *name == "held by").count(), 2);
    assert_eq!((evidence.remedies.len(), evidence.remedies[1].steps.len()), (2, 2), "{evidence:#?}");
}

#[test]
fn a_pod_that_the_kubelet_refused_is_not_tried_again_and_one_in_its_place_is_no_reason() {
    let at = |waiting: &mut WaitingPod| waiting.since = ago(LONGEST_RETRY);
    let names = |world: &Snapshot| -> Vec<&'static str> {
        expect_problem(&RULE, world, &subject()).values.iter().map(|(name, _)| *name).collect()
    };
    assert!(names(&clash(|_| (), at)).contains(&"pending since"));
    let rejected = clash(
        |_| (),
        |waiting| {
            at(waiting);
            waiting.rejected = true;
        },
    );
    assert!(names(&rejected).contains(&"refused since"));
    let evidence = expect_problem(&RULE, &rejected, &subject());
    assert!(evidence.values.contains(&("refused by the kubelet", "pod default/late".to_owned())), "{evidence:#?}");
    let delete =
        "delete all pods of DaemonSet default/late that the kubelet refused: the kubelet does not start them again";
    assert_eq!(evidence.remedies[0].steps[1].text, delete);
    let alone = clash(|_| (), |waiting| (waiting.rejected, waiting.controller) = (true, None));
    let evidence = expect_problem(&RULE, &alone, &subject());
    assert_eq!(evidence.remedies[0].steps[1].text, "delete pod default/late: the kubelet does not start it again");
    silent(&clash(
        |pod| pod.controller = controller("ReplicaSet", "web-7d9"),
        |waiting| (waiting.rejected, waiting.controller) = (true, controller("ReplicaSet", "web-7d9")),
    ));
}

#[test]
fn static_pods_of_one_node_are_not_one_workload() {
    let world = clash(
        |pod| pod.controller = controller("Node", "n1"),
        |waiting| (waiting.rejected, waiting.controller) = (true, controller("Node", "n1")),
    );
    let evidence = expect_problem(&RULE, &world, &subject());
    let own = ["give pod default/late another port, in its manifest on its node"];
    assert_eq!(evidence.remedies[0].steps.iter().map(|it| &it.text).collect::<Vec<_>>(), own);
}

#[test]
fn refused_pods_are_over_once_their_controller_makes_no_other() {
    let refused = |of: Option<Controller>, seconds: [i64; 2]| {
        let pods = seconds.map(|seconds| {
            let pod = waits(0, &format!("late-{seconds}"), |_| ());
            WaitingPod { rejected: true, since: ago(seconds), controller: of.clone(), ..pod }
        });
        judged(pods.into()).len()
    };
    for (latest, reported) in [(LONGEST_RETRY, 1), (LONGEST_RETRY + 1, 0)] {
        assert_eq!(refused(controller("ReplicaSet", "late-5c4"), [9000, latest]), reported, "{latest}");
    }
    for kind in ["Job", "StrimziPodSet"] {
        assert_eq!(refused(controller(kind, "late"), [9000, LONGEST_RETRY + 1]), 1, "a {kind} may make no other");
    }
    let by_nobody = [None, controller("Node", "n1")].map(|of| refused(of, [9000, 8000]));
    assert_eq!(by_nobody, [2, 2], "nobody makes another, and a static pod stays refused");
}

#[test]
fn refused_pods_are_over_once_another_of_their_workload_is_ready_here() {
    let world = |ready: bool, name: &str| {
        let refused = |it: &mut WaitingPod| (it.rejected, it.controller) = (true, controller("ReplicaSet", "web-5c4"));
        clash(|_| (), refused)
            .pod("web-7d9-x", |pod| (pod.ready, pod.controller) = (ready, controller("ReplicaSet", name)))
    };
    silent(&world(true, "web-7d9"));
    expect_problem(&RULE, &world(false, "web-7d9"), &subject());
    expect_problem(&RULE, &world(true, "api-7d9"), &subject());
}

fn judged(pods: Vec<WaitingPod>) -> Vec<Judgement> {
    let mut world = clash(|_| (), |_| ());
    *seen(&mut world.cluster.waiting_pods) = pods.into_iter().map(Arc::new).collect();
    check(&Round::of(&world, None, 60), &Limits::default()).expect("judged")
}

fn waits(second: i64, name: &str, change: fn(&mut WaitingPod)) -> WaitingPod {
    let world = clash(
        |_| (),
        |it| {
            (it.name, it.since) = (name.to_owned(), ago(LONGEST_RETRY - second));
            change(it);
        },
    );
    WaitingPod::clone(&world.cluster.waiting_pods.seen().expect("pods")[0])
}

#[test]
fn of_the_waiting_pods_of_a_controller_the_oldest_is_told() {
    let reported = |pods| judged(pods).into_iter().map(|it| it.subject.name).collect::<Vec<_>>();
    let same: [fn(&mut WaitingPod); 2] = [|_| (), |it| it.rejected = true];
    for same in same {
        assert_eq!(reported(vec![waits(2, "c", same), waits(1, "a", same), waits(3, "b", same)]), ["a"]);
    }
    let changes: [fn(&mut WaitingPod); 6] = [
        |it| it.controller = controller("DaemonSet", "other"),
        |it| it.controller = None,
        |it| it.controller = controller("Node", "n1"),
        |it| it.namespace = "other".to_owned(),
        |it| it.meant_for = None,
        |it| it.rejected = true,
    ];
    for change in changes {
        assert_eq!(reported(vec![waits(2, "b", change), waits(1, "a", |_| ())]), ["a", "b"]);
    }
    for nobodys in [changes[1], changes[2]] {
        assert_eq!(reported(vec![waits(1, "a", nobodys), waits(2, "b", nobodys)]), ["a", "b"]);
    }
    let judgements = judged(vec![waits(1, "a", |_| ()), waits(2, "b", |_| ()), waits(3, "c", |_| ())]);
    let Verdict::Problem(evidence) = &judgements[0].verdict else { panic!("{judgements:?}") };
    assert!(evidence.values.contains(&("pending", "and 2 more".to_owned())), "{evidence:#?}");
}

#[test]
fn the_first_part_of_a_nodes_name_is_its_host_name() {
    let on = |host: &str, node: &str| {
        let mut world = clash(|pod| pod.node = Some(node.to_owned()), |it| it.meant_for = Some(host.to_owned()));
        world.cluster.node_name = Some(node.to_owned());
        world
    };
    expect_problem(&RULE, &on("n1", "n1.example"), &subject());
    silent(&on("n1", "n11.example"));
    silent(&on("n1.example", "n1"));
}

#[test]
fn pods_of_service_lb_are_folded_into_their_services() {
    let world = clash(
        |pod| pod.service_lb_of = name("kube-system", "traefik"),
        |waiting| waiting.service_lb_of = name("default", "web"),
    );
    let world = world.service("web", |it| it);
    let subject = subject_of(&world);
    assert_eq!((subject.to_string().as_str(), subject.uid.is_some()), ("Service default/web", true));
    let evidence = expect_problem(&RULE, &world, &subject);
    assert_eq!(
        evidence.summary,
        "ServiceLB cannot serve Service default/web on this node: hostPort 80/tcp is that of Service kube-system/traefik."
    );
    let remedies = format!("{:?}", evidence.remedies);
    assert!(remedies.contains("give Service default/web another port than 80/tcp"), "{remedies}");
    assert!(remedies.contains("give Service kube-system/traefik") && remedies.contains("lbpool"), "{remedies}");
    // Here, only the waiting pod is a pod of ServiceLB.
    let world = clash(|_| (), |waiting| waiting.service_lb_of = name("other", "web")).service("web", |it| it);
    let subject = subject_of(&world);
    assert_eq!((subject.to_string().as_str(), subject.uid.is_some()), ("Service other/web", false));
    let evidence = expect_problem(&RULE, &world, &subject);
    assert!(!format!("{evidence:?}").contains("lbpool"), "{evidence:#?}");
}

#[test]
fn other_ports_protocols_and_nodes_are_silent() {
    silent(&clash(|pod| pod.ports[0].host_port = Some(81), |_| ()));
    silent(&clash(|pod| pod.ports[0].protocol = Protocol::Udp, |_| ()));
    silent(&clash(|pod| pod.node = Some("n2".to_owned()), |_| ()));
    silent(&clash(|pod| pod.finished = true, |_| ()));
    silent(&clash(|_| (), |waiting| waiting.meant_for = Some("n2".to_owned())));
}

#[test]
fn addresses_are_compared_as_the_scheduler_compares_them() {
    let world = |holder: &str, waiter: &str| {
        let address = |text: &str| (text != "-").then(|| ip(text));
        clash(|pod| pod.ports[0].host_ip = address(holder), |waiting| waiting.ports[0].host_ip = address(waiter))
    };
    for (holder, waiter) in [("-", "0.0.0.0"), ("0.0.0.0", PRIMARY[0]), (PRIMARY[1], "-"), (SECOND[0], SECOND[0])] {
        expect_problem(&RULE, &world(holder, waiter), &subject());
    }
    for (holder, waiter) in [(PRIMARY[0], SECOND[0]), ("::", PRIMARY[0]), (PRIMARY[1], "::")] {
        silent(&world(holder, waiter));
    }
}

#[test]
fn a_pod_that_has_a_node_meanwhile_waits_no_more() {
    silent(&clash(|_| (), |_| ()).pod("late", |_| ()));
    expect_problem(&RULE, &clash(|_| (), |_| ()).pod("late", |pod| pod.namespace = "b".to_owned()), &subject());
    expect_problem(&RULE, &clash(|_| (), |_| ()).pod("later", |_| ()), &subject());
}

#[test]
fn a_port_that_is_given_back_in_time_is_waited_for() {
    let now = Snapshot::healthy().at.as_second();
    let ends = |seconds| {
        let ends = jiff::Timestamp::from_second(now + seconds).expect("a time");
        clash(|pod| pod.ends = Some(ends), |_| ())
    };
    silent(&ends(10));
    // The pod has a grace period of a week.
    expect_problem(&RULE, &ends(604_800), &subject());
    expect_problem(&RULE, &ends(-OVERDUE - 1), &subject());
}

#[test]
fn a_rollout_has_ten_minutes() {
    let now = Snapshot::healthy().at.as_second();
    let world = |holder: &str, seconds: Option<i64>| {
        clash(
            |pod| pod.controller = controller("ReplicaSet", holder),
            |waiting| {
                waiting.controller = controller("ReplicaSet", "web-5c4");
                waiting.since = seconds.map(|ago| jiff::Timestamp::from_second(now - ago).expect("a time"));
            },
        )
    };
    silent(&world("web-7d9", Some(ROLLOUT - 1)));
    let evidence = expect_problem(&RULE, &world("web-7d9", Some(ROLLOUT)), &subject());
    let [rollout, nodes] = &evidence.remedies[..] else { panic!("{evidence:#?}") };
    assert!(rollout.steps[0].text.contains("maxSurge 0"), "{rollout:?}");
    assert!(
        nodes.steps[0].text.contains("more nodes than there are replicas"),
        "one replica is enough to wait: {nodes:?}"
    );
    let [fewer] = &expect_problem(&RULE, &world("web-5c4", None), &subject()).remedies[..] else {
        panic!("no roll-out")
    };
    assert!(fewer.steps[0].text.contains("at most as many replicas as there are nodes"), "{fewer:?}");
    expect_problem(&RULE, &world("web-7d9", None), &subject());
    expect_problem(&RULE, &world("api-7d9", Some(1)), &subject());
    let of_set = clash(
        |pod| pod.controller = controller("StatefulSet", "db"),
        |waiting| (waiting.controller, waiting.since) = (controller("StatefulSet", "db"), None),
    );
    let [fewer] = &expect_problem(&RULE, &of_set, &subject()).remedies[..] else { panic!("it knows no maxSurge") };
    assert!(fewer.steps[0].text.contains("at most as many replicas as there are nodes"), "{fewer:?}");
}

#[test]
fn unread_is_unknown_and_what_nobody_looked_for_is_nothing() {
    let without = |blind: fn(&mut Snapshot)| {
        let mut world = clash(|_| (), |_| ());
        blind(&mut world);
        expect_unknown(&RULE, &world, &subject()).source
    };
    assert_eq!(without(|it| it.cluster.pods = gap(Source::Pods, Why::Unreachable)), Source::Pods);
    let refused = |it: &mut Snapshot| it.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotPermitted);
    assert_eq!(without(refused), Source::WaitingPods);
    let mut world = clash(|_| (), |_| ());
    world.cluster.waiting_pods = WaitingPod::not_requested();
    silent(&world);
    let mut without_services = clash(|_| (), |waiting| waiting.service_lb_of = name("default", "web"));
    without_services.cluster.services = gap(Source::Services, Why::Unreachable);
    expect_problem(&RULE, &without_services, &subject_of(&without_services));
    assert!(objects(&mut without_services.cluster.pods).len() == 1);
}

fn to_come(change: impl FnOnce(&mut Workload)) -> Snapshot {
    let workload = wanting(80, |it| {
        (it.name, it.tolerates) = ("ship".to_owned(), vec![EVERY_TAINT.to_owned()]);
        change(it);
    });
    let mut world = Snapshot::healthy().pod("edge", |pod| {
        pod.host_port(8080, 80);
        pod.node = Some("n2".to_owned());
    });
    world.cluster.workloads.push(workload.into());
    world
}

#[test]
fn where_a_pod_has_the_port_one_that_a_daemon_set_will_make_waits() {
    let evidence = expect_problem(&RULE, &to_come(|_| ()), &Subject::cluster());
    assert_eq!((evidence.severity, evidence.scope, evidence.variant), (Severity::Warning, Scope::Cluster, "pod"));
    assert_eq!(
        evidence.summary,
        "pod default/edge on n2 has port 80/tcp, which DaemonSet default/ship wants: the pod for that node stays Pending."
    );
    let tainted = expect_problem(&RULE, &to_come(|it| it.tolerates.clear()), &Subject::cluster());
    assert_eq!(tainted.severity, Severity::Info, "a taint may keep it away");
    let mut no_waiting = to_come(|_| ());
    no_waiting.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotRequested);
    expect_problem(&RULE, &no_waiting, &Subject::cluster());
}

#[test]
fn a_daemon_set_of_other_nodes_or_ports_or_with_pods_waits_for_nobody() {
    let changes: [fn(&mut Workload); 6] = [
        |it| it.kind = WorkloadKind::Deployment,
        |it| it.selects = vec!["pool In a".to_owned()],
        |it| it.avoids = vec!["type NotIn fargate".to_owned()],
        |it| it.ports[0].host_port = Some(81),
        |it| it.ports[0].protocol = Protocol::Udp,
        // The scheduler treats `::` as one address, not as all addresses.
        |it| it.ports[0].host_ip = Some(ip("192.0.2.1")),
    ];
    let silent = |world: &Snapshot| expect_healthy(&RULE, world, &Subject::cluster());
    for (index, change) in changes.into_iter().enumerate() {
        let mut world = to_come(change);
        if index == 5 {
            let pod = Arc::make_mut(&mut seen(&mut world.cluster.pods)[0]);
            pod.ports[0].host_ip = Some(ip("::"));
        }
        silent(&world);
    }
    silent(&to_come(|_| ()).pod("ship-1", |pod| pod.controller = controller("DaemonSet", "ship")));
    let mut ended = to_come(|_| ());
    Arc::make_mut(&mut seen(&mut ended.cluster.pods)[0]).finished = true;
    silent(&ended);
}

#[test]
fn who_has_the_ports_of_a_daemon_set_is_unknown_without_pods() {
    let mut world = to_come(|_| ());
    world.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotRequested);
    for why in [Why::Unreachable, Why::NotRequested] {
        world.cluster.pods = gap(Source::Pods, why);
        assert_eq!(expect_unknown(&RULE, &world, &Subject::cluster()).source, Source::Pods);
    }
}
