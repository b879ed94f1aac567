//! A pod's hostPort lies in the NodePort range.

use std::collections::HashSet;

use super::{
    Limits, Round, Rule,
    capped::Capped,
    ids,
    node_ports::{ports_in_words, range_in_words},
    pods::{PortOf, pods_before, to_come, unread_pod},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{ByPort, Need, cilium_range, host_ports, mode_in_words};
use portreeve_facts::{ContainerPort, Gap, Mode, NodePortRange, PortSet, Protocol, Service, Snapshot, Source};

pub(super) static RULE: Rule = Rule::of(
    &ids::HOST_PORT_CONFLICT,
    &["latent", "ignored", "health-check"],
    &[Source::Pods, Source::Services, Source::NodePortRange],
    check,
);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let pods = pods_before(snapshot)?;
    let services = snapshot.cluster.services.get()?;
    let range = snapshot.cluster.node_port_range.get()?;
    let ports = services.iter().flat_map(|service| &service.ports);
    let here = Here {
        snapshot,
        range,
        cilium: cilium_range(snapshot),
        mode: snapshot.proxy_mode().map(|mode| mode.value),
        needs: round.needs().with(&[Source::Services])?,
        allocated: ports.filter_map(|port| Some((port.node_port?, port.protocol))).collect(),
    };
    let mut capped = Capped::of(snapshot, Source::Pods);
    for (pod, host, number) in host_ports(snapshot, pods) {
        here.judge(PortOf::Pod(pod), host, number).into_iter().for_each(|judgement| capped.push(judgement));
    }
    unread_pod(snapshot).into_iter().for_each(|judgement| capped.push(judgement));
    let mut judgements = capped.all();
    for workload in to_come(snapshot).filter(|workload| !workload.host_network) {
        // Leaves out hostPorts on loopback: only the node uses them, and Services are seldom used on loopback.
        let on_addresses = |(_, host): &(u16, &ContainerPort)| !host.host_ip.is_some_and(|ip| ip.is_loopback());
        for (number, host) in workload.node_ports().filter(on_addresses) {
            judgements.extend(here.judge(PortOf::Workload(workload), host, number));
        }
    }
    Ok(judgements)
}

struct Here<'a> {
    snapshot: &'a Snapshot,
    range: &'a NodePortRange,
    cilium: Result<PortSet, Gap>,
    mode: Result<Mode, Gap>,
    /// The needs of each port of this node, including health checks of Services.
    needs: &'a ByPort<Need<'a>>,
    allocated: HashSet<(u16, Protocol)>,
}

impl Here<'_> {
    fn judge(&self, of: PortOf<'_>, host: &ContainerPort, number: u16) -> Vec<Judgement> {
        let in_range = self.range.range.contains(number);
        // Cilium does not serve a hostPort whose number is in Cilium's own NodePort range.
        let ignored = self.cilium.as_ref().map(|ranges| ranges.contains(number));
        let certain = in_range || ignored.as_ref().map_or(true, |ignored| *ignored);
        if !certain || self.allocated.contains(&(number, host.protocol)) {
            return Vec::new();
        }
        let check = self.needs.at((host.protocol, number)).iter().find_map(|need| match need {
            Need::HealthCheck(service) => Some(*service),
            _ => None,
        });
        let latent = || Verdict::Problem(self.evidence((of, host, number), &Stakes::Latent(check)));
        let verdicts = match (&self.mode, ignored) {
            (Ok(Mode::Cilium), Ok(false)) => vec![],
            (Ok(Mode::Cilium), Ok(true)) => {
                let ranges = self.cilium.clone().unwrap_or_default();
                vec![Verdict::Problem(self.evidence((of, host, number), &Stakes::Ignored(ranges)))]
            }
            (Ok(Mode::Cilium), Err(gap)) => vec![Verdict::Unknown(gap.clone())],
            (Ok(_), _) if in_range => vec![latent()],
            (Ok(_), _) => vec![],
            (Err(gap), ignored) => {
                let latent = (in_range && !matches!(ignored, Ok(false))).then(latent);
                latent.into_iter().chain([Verdict::Unknown(gap.clone())]).collect()
            }
        };
        let judgement =
            |verdict| Judgement::on_port(of.subject_or(Subject::cluster()), (host.protocol, number), verdict);
        verdicts.into_iter().map(judgement).collect()
    }

    fn evidence(&self, (of, host, number): (PortOf<'_>, &ContainerPort, u16), stakes: &Stakes<'_>) -> Evidence {
        let what = format!("hostPort {number}/{} of {of}", host.protocol);
        let (severity, end, variant) = match stakes {
            Stakes::Ignored(_) => (Severity::Warning, "Cilium does not serve it".to_owned(), "ignored"),
            Stakes::Latent(None) => {
                (of.in_range(self.range), "the API server may give the number to a Service".to_owned(), "latent")
            }
            Stakes::Latent(Some(Service { namespace, name, .. })) => {
                let end = format!(
                    "the number is the healthCheckNodePort of Service {namespace}/{name}, and a load balancer's checks may reach the pod"
                );
                (Severity::Warning, end, "health-check")
            }
        };
        let evidence = Evidence::new(severity, format!("{what} lies in the NodePort range: {end}.")).variant(variant);
        let evidence = match of {
            PortOf::Pod(_) => evidence,
            PortOf::Workload(_) => evidence.in_cluster(),
        };
        let mut evidence = of
            .named_in(evidence, number, host.protocol)
            .value("hostPort", format!("{number}/{} to container port {}", host.protocol, host.port))
            .value("NodePort range", range_in_words(self.range))
            .value("proxy mode", mode_in_words(&self.snapshot.proxy_mode()));
        if let Stakes::Ignored(ranges) = stakes {
            evidence = evidence.value("Cilium", format!("node-port-range {}", ports_in_words(ranges))).affects([
                Vantage::Remote,
                Vantage::Node,
                Vantage::Pods,
            ]);
        }
        evidence.remedy(Step::advice(format!(
            "give {of} a hostPort outside the NodePort range, in the object that declares its containers"
        )))
    }
}

enum Stakes<'a> {
    /// Cilium does not serve the hostPort, because its number is in Cilium's own range.
    Ignored(PortSet),
    /// The hostPort works now. If the hostPort is also a healthCheckNodePort, the value is the Service.
    Latent(Option<&'a Service>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capped::OF_SUBJECT,
        expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown, wanting},
        findings::Scope,
    };
    use portreeve_facts::{
        Claimant, Controller, Pod, PortRange, RangeClaim, Reading, ServiceKind, Why, Workload, WorkloadKind,
        healthy::{World, gap},
    };

    fn edge(host_port: u16) -> Snapshot {
        Snapshot::healthy().pod("edge", |pod| pod.host_port(80, host_port))
    }

    fn subject() -> Subject {
        Subject::pod(&edge(30777).cluster.pods.seen().expect("pods")[0])
    }

    fn cilium(world: &Snapshot, ranges: Reading<Vec<PortRange>>) -> Snapshot {
        let mut world = world.with_mode(Mode::Cilium);
        let place = "ConfigMap kube-system/cilium-config".to_owned();
        world.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place });
        world
    }

    fn one(range: &str) -> Reading<Vec<PortRange>> {
        Reading::Seen(vec![range.parse().expect("a range")])
    }

    #[test]
    fn of_a_pod_with_very_many_a_few_are_told_and_that_there_are_more() {
        let world = Snapshot::healthy().pod("many", |pod| {
            pod.host_port(30000, 80);
            let port = pod.ports[0].clone();
            pod.ports =
                (30000..32768).map(|number| ContainerPort { host_port: Some(number), ..port.clone() }).collect();
        });
        let judged = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        assert_eq!(judged.len(), OF_SUBJECT + 1);
        assert!(matches!(&judged[OF_SUBJECT].verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));
    }

    #[test]
    fn cilium_ignores_it_and_with_every_other_proxy_it_is_information() {
        for mode in Mode::KUBE_PROXY {
            let evidence = expect_problem(&RULE, &edge(30777).with_mode(mode), &subject());
            assert_eq!((evidence.severity, evidence.variant), (Severity::Info, "latent"), "{mode}");
            assert!(evidence.affects.is_empty());
        }
        let evidence = expect_problem(&RULE, &edge(30777).with_mode(Mode::Cilium), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "ignored"));
        assert_eq!(
            evidence.summary,
            "hostPort 30777/tcp of pod default/edge lies in the NodePort range: Cilium does not serve it."
        );
        assert!(evidence.affects.contains(&Vantage::Remote));
        assert!(evidence.remedies[0].steps[0].text.contains("outside the NodePort range"));
    }

    #[test]
    fn a_health_check_with_the_number_is_a_warning() {
        let world = |change: fn(&mut Pod)| {
            let world = edge(30777).pod("other", change);
            world.service("lb", |it| {
                it.with(|service| {
                    (service.kind, service.external_local) = (ServiceKind::LoadBalancer, true);
                    service.health_check_node_port = Some(30777);
                })
            })
        };
        let evidence = expect_problem(&RULE, &world(|_| ()), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "health-check"));
        assert!(evidence.summary.contains("healthCheckNodePort of Service default/lb"), "{}", evidence.summary);
        let udp = Snapshot::healthy().pod("edge", |pod| {
            pod.host_port(80, 30777);
            pod.ports[0].protocol = Protocol::Udp;
        });
        assert_eq!(expect_problem(&RULE, &udp, &subject()).variant, "latent");
    }

    #[test]
    fn the_edges_of_the_range_are_inside() {
        for (port, inside) in [(29999, false), (30000, true), (32767, true), (32768, false)] {
            for mode in [Mode::Iptables, Mode::Cilium] {
                let world = edge(port).with_mode(mode);
                if inside {
                    expect_problem(&RULE, &world, &subject());
                } else {
                    expect_healthy(&RULE, &world, &subject());
                }
            }
        }
    }

    #[test]
    fn with_cilium_its_own_range_counts() {
        let evidence = expect_problem(&RULE, &cilium(&edge(20080), one("20000-22767")), &subject());
        assert!(evidence.values.contains(&("Cilium", "node-port-range 20000-22767".to_owned())));
        expect_healthy(&RULE, &cilium(&edge(30777), one("20000-22767")), &subject());
        let unread = cilium(&edge(30777), gap(Source::ConfigMaps, Why::Malformed));
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::ConfigMaps);
        let mut other = cilium(&edge(20080), one("20000-22767")).with_mode(Mode::Iptables);
        expect_healthy(&RULE, &other, &subject());
        other = cilium(&edge(30777), one("20000-22767")).with_mode(Mode::Iptables);
        assert_eq!(expect_problem(&RULE, &other, &subject()).severity, Severity::Info);
    }

    #[test]
    fn a_number_that_a_service_has_is_reported_elsewhere() {
        let with = |change: fn(World) -> World| edge(30777).service("web", |it| change(it.node_port(30777)));
        for mode in [Mode::Iptables, Mode::Cilium] {
            expect_healthy(&RULE, &with(|it| it).with_mode(mode), &subject());
            expect_problem(&RULE, &with(|it| it.protocol(Protocol::Udp)).with_mode(mode), &subject());
        }
    }

    #[test]
    fn host_network_finished_and_foreign_pods_are_silent() {
        type Change = fn(&mut Pod);
        let changes: [Change; 3] =
            [|pod| pod.host_network = true, |pod| pod.finished = true, |pod| pod.node = Some("n2".to_owned())];
        for change in changes {
            let world = Snapshot::healthy().pod("edge", |pod| {
                pod.host_port(80, 30777);
                change(pod);
            });
            expect_healthy(&RULE, &world.with_mode(Mode::Cilium), &subject());
        }
    }

    #[test]
    fn without_the_mode_it_is_at_least_information_where_both_ranges_have_it() {
        let world = edge(30777).without_proxy();
        assert_eq!(expect_problem(&RULE, &world, &subject()).severity, Severity::Info);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyMode);
        let only_cilium = cilium(&edge(20080), one("20000-22767")).without_proxy();
        assert_eq!(expect_unknown(&RULE, &only_cilium, &subject()).source, Source::ProxyMode);
        let unread = cilium(&edge(30777), gap(Source::ConfigMaps, Why::Malformed));
        assert_eq!(expect_problem(&RULE, &unread.without_proxy(), &subject()).severity, Severity::Info);
        expect_healthy(&RULE, &edge(8080).without_proxy(), &subject());
        expect_certain(&RULE, &edge(30777), &subject());
    }

    #[test]
    fn a_port_that_a_pod_to_come_will_have_is_information_unless_each_node_has_it_for_certain() {
        let with = |workload: Workload| {
            let mut world = Snapshot::healthy();
            world.cluster.workloads.push(workload.into());
            world
        };
        let of = |change: fn(&mut Workload)| with(wanting(30777, change));
        let cluster = Subject::cluster();
        let evidence = expect_problem(&RULE, &of(|_| ()), &cluster);
        assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Cluster));
        assert_eq!(
            evidence.summary,
            "hostPort 30777/tcp of DaemonSet default/agent lies in the NodePort range: the API server may give the number to \
             a Service."
        );
        let mild: [fn(&mut Workload); 2] =
            [|it| it.kind = WorkloadKind::Deployment, |it| it.selects = vec!["pool In a".to_owned()]];
        for change in mild {
            assert_eq!(expect_problem(&RULE, &of(change), &cluster).severity, Severity::Info);
        }
        assert_eq!(expect_problem(&RULE, &of(|_| ()).assumed_range(), &cluster).severity, Severity::Info);
        let behind_cilium = of(|_| ()).with_mode(Mode::Cilium);
        assert_eq!(expect_problem(&RULE, &behind_cilium, &cluster).variant, "ignored");
        let silent: [fn(&mut Workload); 3] = [
            |it| it.ports[0].host_port = Some(8080),
            |it| it.ports[0].host_ip = Some("127.0.0.1".parse().expect("an address")),
            |it| (it.host_network, it.ports[0].port) = (true, 30777),
        ];
        for change in silent {
            expect_healthy(&RULE, &of(change), &cluster);
        }
        expect_healthy(&RULE, &of(|_| ()).service("web", |it| it.node_port(30777)), &cluster);
        let controller = Controller { kind: "DaemonSet".to_owned(), name: "agent".to_owned() };
        expect_healthy(&RULE, &of(|_| ()).pod("agent-1", |pod| pod.controller = Some(controller)), &cluster);
        let mut no_pods = of(|_| ());
        no_pods.cluster.pods = gap(Source::Pods, Why::NotRequested);
        expect_problem(&RULE, &no_pods, &cluster);
        no_pods.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &no_pods, &cluster).source, Source::Pods);
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = edge(30777);
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods);
        let unused = Snapshot::healthy().rejects(Source::Pods);
        assert_eq!(expect_unknown(&RULE, &unused, &Subject::node("n1", None)).source, Source::Pods);
        let mut world = edge(30777);
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
        let mut world = edge(30777);
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
    }
}
