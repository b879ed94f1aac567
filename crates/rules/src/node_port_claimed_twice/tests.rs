use super::*;
use crate::{
    findings::{Scope, StepKind},
    {
        capped::OF_SUBJECT,
        expectations::{expect_healthy, expect_problem, expect_unknown, wanting},
    },
};
use portreeve_facts::{
    Controller, Family, ServiceKind, WorkloadKind,
    healthy::{World, gap, ip, objects, seen},
};

fn subject(name: &str) -> Subject {
    let world = Snapshot::healthy().service(name, |it| it);
    Subject::service(&world.cluster.services.seen().expect("services")[0])
}

fn two(change: impl FnOnce(World) -> World) -> Snapshot {
    Snapshot::healthy().service("first", |it| it.node_port(30777)).service("second", |it| change(it.node_port(30777)))
}

fn written(it: World) -> World {
    it.with(|service| (service.uid, service.ports[0].fixed) = (None, Some(true)))
}

fn with_workload(mut world: Snapshot, change: impl FnOnce(&mut Workload)) -> Snapshot {
    world.cluster.workloads.push(wanting(30777, change).into());
    world
}

fn one() -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30777))
}

#[test]
fn two_services_of_a_cluster_with_one_number_lose_connections() {
    let world = two(|it| it);
    let evidence = expect_problem(&RULE, &world, &subject("first"));
    assert_eq!((evidence.severity, evidence.scope, evidence.variant), (Severity::Critical, Scope::Cluster, "lost"));
    assert_eq!(
        evidence.summary,
        "nodePort 30777/tcp of default/first is also nodePort of default/second: only one of the Services gets connections."
    );
    assert_eq!(evidence.affects, [Vantage::Remote, Vantage::Node, Vantage::Pods].into());
    assert!(evidence.remedies[0].steps[0].text.contains("patch service first"), "{:?}", evidence.remedies);
    assert_eq!(evidence.remedies.len(), 1);
    assert!(expect_problem(&RULE, &world, &subject("second")).summary.contains("also nodePort of default/first"));
}

#[test]
fn of_two_that_are_still_to_be_created_the_second_is_refused() {
    let evidence = expect_problem(&RULE, &two(written), &subject("second"));
    assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "refused"));
    assert!(evidence.summary.ends_with("the API server refuses to create this Service."), "{}", evidence.summary);
    assert!(evidence.affects.is_empty());
    assert_eq!(evidence.remedies[0].steps[0].kind, StepKind::Advice, "nothing to patch yet");
    expect_healthy(&RULE, &two(written), &subject("first"));
    let other = |it: World| written(it).protocol(Protocol::Udp);
    assert_eq!(expect_problem(&RULE, &two(other), &subject("second")).variant, "refused", "whatever the protocol is");
}

#[test]
fn a_load_balancer_without_its_node_port_may_get_none() {
    let advice = |world: &Snapshot| expect_problem(&RULE, world, &subject("second")).remedies[0].steps[0].text.clone();
    let balanced = |it: World| written(it).with(|service| service.kind = ServiceKind::LoadBalancer);
    assert_eq!(advice(&two(balanced)), "give Service default/second another nodePort, or remove the field");
    assert!(advice(&two(written)).ends_with("remove the field so that the API server chooses a number"));
}

#[test]
fn a_number_that_an_updated_service_keeps_is_not_refused() {
    let kept = |it: World| it.with(|service| (service.uid, service.ports[0].fixed) = (None, Some(false)));
    assert_eq!(expect_problem(&RULE, &two(kept), &subject("second")).variant, "lost");
    let own = |protocol| {
        let with = |it: World| {
            kept(it.node_port(30777)).with(|service| {
                let port = service.ports[0].clone();
                service.ports.push(ServicePort { name: "b".to_owned(), protocol, port: 81, ..port });
            })
        };
        expect_problem(&RULE, &Snapshot::healthy().service("web", with), &subject("web")).variant
    };
    assert_eq!(own(Protocol::Udp), "anew");
    assert_eq!(own(Protocol::Tcp), "refused", "one object has the number twice for one protocol");
}

#[test]
fn what_works_until_it_is_created_anew_is_a_warning() {
    let changes: [fn(World) -> World; 3] = [
        |it| it.protocol(Protocol::Udp),
        |it| it.with(|service| service.proxy_name = Some("other".to_owned())),
        |it| it.with(|service| service.families = &[Family::V6]),
    ];
    for change in changes {
        let mut world = two(change);
        objects(&mut world.cluster.services)[0].families = &[Family::V4];
        let evidence = expect_problem(&RULE, &world, &subject("first"));
        assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "anew"));
        assert!(evidence.affects.is_empty());
    }
}

fn check(world: Snapshot, name: &str, number: u16) -> Snapshot {
    world.service(name, |it| it.with(|service| service.health_check_node_port = Some(number)))
}

#[test]
fn a_health_check_has_a_number_too() {
    let world = check(one(), "lb", 30777);
    let evidence = expect_problem(&RULE, &world, &subject("lb"));
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(
        evidence.summary.starts_with("healthCheckNodePort 30777/tcp of default/lb is also nodePort of default/web")
    );
    assert!(evidence.remedies[0].steps[0].text.contains("externalTrafficPolicy"), "{:?}", evidence.remedies);
    let evidence = expect_problem(&RULE, &world, &subject("web"));
    assert!(evidence.summary.contains("also healthCheckNodePort of default/lb:"), "{}", evidence.summary);
    let both = check(check(one(), "lb", 30778), "other", 30778);
    assert_eq!(expect_problem(&RULE, &both, &subject("other")).severity, Severity::Critical);
    expect_healthy(&RULE, &both, &subject("web"));
    let own = Snapshot::healthy()
        .service("web", |it| it.node_port(30777).with(|service| service.health_check_node_port = Some(30777)));
    assert_eq!(expect_problem(&RULE, &own, &subject("web")).severity, Severity::Critical, "of one Service");
    let alone = check(Snapshot::healthy(), "lb", 30779);
    expect_healthy(&RULE, &alone, &subject("lb"));
}

#[test]
fn one_service_may_have_a_number_for_two_protocols_and_not_twice_for_one() {
    let with = |protocol, port| {
        Snapshot::healthy().service("web", |it| {
            it.node_port(30777).with(|service| {
                service.ports.push(ServicePort { name: "b".to_owned(), protocol, port, ..service.ports[0].clone() });
            })
        })
    };
    expect_healthy(&RULE, &with(Protocol::Udp, 80), &subject("web"));
    assert_eq!(expect_problem(&RULE, &with(Protocol::Tcp, 81), &subject("web")).severity, Severity::Critical);
    let updated = expect_problem(&RULE, &with(Protocol::Udp, 81), &subject("web"));
    assert_eq!((updated.severity, updated.variant), (Severity::Warning, "anew"), "no client can create it so");
}

#[test]
fn a_service_that_is_there_twice_and_other_numbers_are_silent() {
    let mut world = one();
    let services = seen(&mut world.cluster.services);
    let copy = Service::clone(&services[0]);
    services.push(copy.into());
    expect_healthy(&RULE, &world, &subject("web"));
    let world = two(|it| it.node_port(30778));
    for name in ["first", "second"] {
        expect_healthy(&RULE, &world, &subject(name));
    }
}

#[test]
fn of_many_clashes_the_worst_decides_wherever_it_is_in_a_file() {
    let mild =
        |world: Snapshot, n: usize| world.service(&format!("a{n}"), |it| it.node_port(30777).protocol(Protocol::Udp));
    let world = (0..=MOST_LISTED).fold(Snapshot::healthy(), mild).service("web", |it| it.node_port(30777));
    assert_eq!(expect_problem(&RULE, &world, &subject("web")).severity, Severity::Warning);
    let world = world.service("twin", |it| it.node_port(30777));
    assert_eq!(expect_problem(&RULE, &world, &subject("web")).severity, Severity::Critical);
}

#[test]
fn of_more_clashes_than_are_compared_the_worst_is_found_and_the_rest_is_counted() {
    let of_another_proxy = |world: Snapshot, n: usize| {
        let other = |it: World| it.node_port(30777).with(|service| service.proxy_name = Some("other".to_owned()));
        world.service(&format!("a{n}"), other)
    };
    let world = (0..2 * MOST_COMPARED).fold(Snapshot::healthy(), of_another_proxy);
    let world = ["twin", "web"].iter().fold(world, |world, name| world.service(name, |it| it.node_port(30777)));
    let evidence = expect_problem(&RULE, &world, &subject("web"));
    assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "lost"));
    let more = format!("and {} more", 2 * MOST_COMPARED + 1 - MOST_LISTED);
    assert!(evidence.summary.contains(&more), "{}", evidence.summary);
    assert!(evidence.values.contains(&("also claimed by", more)), "{:?}", evidence.values);
}

#[test]
fn a_port_that_its_service_may_have_beside_it_is_no_clash_even_if_not_all_are_compared() {
    let twin = |world: Snapshot, n: usize| world.service(&format!("a{n}"), |it| it.node_port(30777));
    let both = |it: World| {
        it.node_port(30777).with(|dns| {
            let udp = ServicePort { protocol: Protocol::Udp, ..dns.ports[0].clone() };
            dns.ports.push(udp);
        })
    };
    let world = (0..MOST_COMPARED).fold(Snapshot::healthy(), twin).service("dns", both);
    let evidence = expect_problem(&RULE, &world, &subject("dns"));
    let more = format!("and {} more", MOST_COMPARED - MOST_LISTED);
    assert!(evidence.values.contains(&("also claimed by", more.clone())), "{more}: {:?}", evidence.values);
}

#[test]
fn a_workload_loses_nothing_to_a_service_of_another_proxy() {
    let other = |it: World| it.node_port(30777).with(|service| service.proxy_name = Some("other".to_owned()));
    expect_healthy(&RULE, &with_workload(Snapshot::healthy().service("web", other), |_| ()), &subject("web"));
}

#[test]
fn a_workload_of_a_file_will_want_the_port() {
    let evidence = expect_problem(&RULE, &with_workload(one(), |_| ()), &subject("web"));
    assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "pods"));
    assert_eq!(
        evidence.summary,
        "nodePort 30777/tcp of default/web is also hostPort of DaemonSet default/agent: on nodes with its pods, one of the two gets no connections."
    );
    assert!(evidence.remedies[1].steps[0].text.starts_with("give DaemonSet default/agent another port"));
    let host_network = |workload: &mut Workload| {
        workload.host_network = true;
        (workload.ports[0].port, workload.ports[0].host_port) = (30777, None);
    };
    let evidence = expect_problem(&RULE, &with_workload(one(), host_network), &subject("web"));
    assert!(evidence.summary.contains("also port of DaemonSet default/agent in the host's network"));
    let both = with_workload(with_workload(one(), |_| ()), |workload| workload.name = "other".to_owned());
    assert_eq!(expect_problem(&RULE, &both, &subject("web")).remedies.len(), 1, "moving one of two would not end it");
    let worse = with_workload(two(|it| it), |_| ());
    let evidence = expect_problem(&RULE, &worse, &subject("first"));
    assert_eq!((evidence.variant, evidence.remedies.len()), ("lost", 1), "moving the pods would not end it");
}

#[test]
fn where_pods_could_not_be_read_a_workload_may_have_some() {
    let world = |why| {
        let mut world = with_workload(one(), |_| ());
        world.cluster.pods = gap(Source::Pods, why);
        world
    };
    expect_problem(&RULE, &world(Why::NotRequested), &subject("web"));
    expect_healthy(&RULE, &world(Why::Unreachable), &subject("web"));
    let node = Subject::node("n1", None);
    assert_eq!(expect_unknown(&RULE, &world(Why::Unreachable), &node).source, Source::Pods);
    let mut without = one();
    without.cluster.pods = gap(Source::Pods, Why::Unreachable);
    expect_healthy(&RULE, &without, &node);
    let mut written = Snapshot::healthy().service("web", |it| it.node_port(30080).with(|service| service.uid = None));
    written.cluster.pods = gap(Source::Pods, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &written, &node).source, Source::Pods, "any pod may have the number");
}

#[test]
fn a_workload_with_another_port_or_protocol_or_with_pods_to_judge_is_silent() {
    let changes: [fn(&mut Workload); 3] = [
        |workload| workload.ports[0].host_port = Some(30778),
        |workload| workload.ports[0].protocol = Protocol::Udp,
        |workload| (workload.ports[0].port, workload.ports[0].host_port) = (30777, None),
    ];
    for change in changes {
        expect_healthy(&RULE, &with_workload(one(), change), &subject("web"));
    }
    let with_pod = |kind: WorkloadKind, controller: (&str, &str), namespace: &str| {
        with_workload(one(), |workload| workload.kind = kind).pod("agent-x7k2p", |pod| {
            pod.namespace = namespace.to_owned();
            pod.controller = Some(Controller { kind: controller.0.to_owned(), name: controller.1.to_owned() });
        })
    };
    let (set, deployment) = (WorkloadKind::DaemonSet, WorkloadKind::Deployment);
    expect_healthy(&RULE, &with_pod(set, ("DaemonSet", "agent"), "default"), &subject("web"));
    expect_healthy(&RULE, &with_pod(deployment, ("ReplicaSet", "agent-7d9"), "default"), &subject("web"));
    for (kind, controller, namespace) in [
        (set, ("DaemonSet", "agent"), "shop"),
        (set, ("DaemonSet", "agent-x7k2p"), "default"),
        (set, ("StatefulSet", "agent"), "default"),
        (deployment, ("ReplicaSet", "agent-web-7d9"), "default"),
    ] {
        expect_problem(&RULE, &with_pod(kind, controller, namespace), &subject("web"));
    }
    let bare = with_workload(one(), |_| ()).pod("agent-x7k2p", |_| ());
    expect_problem(&RULE, &bare, &subject("web"));
}

fn elsewhere(change: fn(&mut portreeve_facts::Pod)) -> Snapshot {
    one().pod("log-x", |pod| {
        pod.host_port(2020, 30777);
        (pod.namespace, pod.node) = ("kube-system".to_owned(), Some("n2".to_owned()));
        change(pod);
    })
}

#[test]
fn a_pod_of_another_node_has_the_port_and_one_of_this_node_is_told_by_its_data_plane() {
    let evidence = expect_problem(&RULE, &elsewhere(|_| ()), &subject("web"));
    assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "pods"));
    assert_eq!(
        evidence.summary,
        "nodePort 30777/tcp of default/web is also hostPort of pod kube-system/log-x on n2: on that node one of the two gets no connections."
    );
    let own = expect_problem(&RULE, &elsewhere(|pod| pod.namespace = "default".to_owned()), &subject("web"));
    assert_eq!((own.severity, own.variant), (Severity::Warning, "pods"), "the Service sends to another port");
    for (namespace, variant) in [("default", "own"), ("kube-system", "pods")] {
        let mut world = elsewhere(|_| ());
        Arc::make_mut(&mut seen(&mut world.cluster.services)[0]).ports[0].target = Some(2020);
        Arc::make_mut(&mut seen(&mut world.cluster.pods)[0]).namespace = namespace.to_owned();
        assert_eq!(expect_problem(&RULE, &world, &subject("web")).variant, variant);
    }
    let changes: [fn(&mut portreeve_facts::Pod); 5] = [
        |pod| pod.node = Some("n1".to_owned()),
        |pod| pod.finished = true,
        |pod| pod.ports[0].host_ip = Some(ip("127.0.0.1")),
        |pod| pod.ports[0].protocol = Protocol::Udp,
        |pod| {
            let (namespace, name) = ("default".to_owned(), "web".to_owned());
            pod.service_lb_of = Some(ServiceName { namespace, name });
        },
    ];
    for change in changes {
        expect_healthy(&RULE, &elsewhere(change), &subject("web"));
    }
    let of = |pod: &mut portreeve_facts::Pod| {
        pod.controller = Some(Controller { kind: "DaemonSet".to_owned(), name: "log".to_owned() });
    };
    let two = elsewhere(of).pod("log-y", |pod| {
        pod.host_port(2020, 30777);
        (pod.namespace, pod.node) = ("kube-system".to_owned(), Some("n3".to_owned()));
        of(pod);
    });
    assert!(!expect_problem(&RULE, &two, &subject("web")).summary.contains("log-y"), "one stands for its workload");
}

#[test]
fn unread_is_unknown() {
    let mut world = two(|it| it);
    world.cluster.services = gap(Source::Services, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &world, &subject("first")).source, Source::Services);
    let mut world = with_workload(one(), |_| ());
    world.cluster.pods = gap(Source::Pods, Why::NotRequested);
    expect_problem(&RULE, &world, &subject("web"));
}

#[test]
fn a_services_own_pods_in_the_hosts_network_are_information() {
    let with = |target: Option<u16>, change: fn(&mut Workload)| {
        let service = move |it: World| it.node_port(30777).with(|service| service.ports[0].target = target);
        with_workload(Snapshot::healthy().service("web", service), |it| {
            (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 30777, None);
            change(it);
        })
    };
    let evidence = |world: &Snapshot| {
        let service = &world.cluster.services.seen().expect("services")[0];
        expect_problem(&RULE, world, &Subject::service(service))
    };
    let severity = |world: &Snapshot| evidence(world).severity;
    assert_eq!(evidence(&with(Some(30777), |_| ())).variant, "own");
    assert_eq!(severity(&with(Some(30777), |_| ())), Severity::Info);
    assert_eq!(severity(&with(None, |_| ())), Severity::Info, "a named port");
    assert_eq!(severity(&with(Some(8080), |_| ())), Severity::Warning);
    assert_eq!(severity(&with(Some(30777), |it| it.namespace = "other".to_owned())), Severity::Warning);
    assert_eq!(
        severity(&with(Some(30777), |it| (it.host_network, it.ports[0].host_port) = (false, Some(30777)))),
        Severity::Warning
    );
    let world = with(Some(8080), |it| it.ports[0].host_ip = Some(ip("127.0.0.1")));
    let service = Subject::service(&world.cluster.services.seen().expect("services")[0]);
    expect_healthy(&RULE, &world, &service);
}

#[test]
fn of_many_services_with_the_number_of_many_workloads_only_the_first_are_compared_with_workloads() {
    let twin = |world: Snapshot, n: usize| world.service(&format!("a{n}"), |it| it.node_port(30777));
    let world = (0..=2 * MOST_COMPARED).fold(Snapshot::healthy(), twin);
    let named = |world, n: usize| with_workload(world, |workload| workload.name = format!("w{n}"));
    let world = (0..MOST_WITH_PODS / (2 * MOST_COMPARED)).fold(world, named);
    let judged = RULE.judge(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
    let more = |judgement: &Judgement| match &judgement.verdict {
        Verdict::Problem(evidence) => evidence.values.last().map(|(_, value)| value.clone()),
        _ => None,
    };
    let of_services = 2 * MOST_COMPARED - MOST_LISTED;
    let of_all = of_services + MOST_WITH_PODS / (2 * MOST_COMPARED);
    assert_eq!(more(&judged[0]), Some(format!("and {of_all} more")));
    assert_eq!(more(&judged[2 * MOST_COMPARED]), Some(format!("and {of_services} more")));
    assert!(matches!(&judged.last().expect("some").verdict, Verdict::Unknown(gap) if gap.source == Source::Pods));
}

#[test]
fn of_many_numbers_a_few_of_each_service_are_told_and_that_there_are_more() {
    let many = |it: World| {
        it.node_port(30777).with(|service| {
            let port = service.ports[0].clone();
            service.ports = (0..100).map(|n| ServicePort { node_port: Some(30000 + n), ..port.clone() }).collect();
        })
    };
    let world = Snapshot::healthy().service("first", many).service("second", many);
    let judged = RULE.judge(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
    assert_eq!(judged.len(), 2 * OF_SUBJECT + 1);
    assert!(matches!(&judged.last().expect("some").verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));
}
