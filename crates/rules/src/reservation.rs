//! The remedy that reserves ports, so that outgoing connections do not get them, and the limits of this remedy.

use super::{Round, needed_ports::NeededPorts, node_ports::counted, remedies::set_sysctl};
use crate::findings::{Effect, Remedy, Step};
use portreeve_facts::{PortRange, PortSet, Reading, Unread};

/// The smallest number of ports that must remain for outgoing connections. Without ports, each `connect` of the node
/// fails (measured on Linux 6.18: EADDRNOTAVAIL, and for UDP EAGAIN), and the kubelet cannot reach the API server.
pub(super) const FEWEST_LEFT: u32 = 8192;
/// The longest list for one write, in bytes: a memory page minus two bytes. One byte is for the kernel
/// (kernel/sysctl.c, `proc_do_large_bitmap`), and one for the line end.
pub(super) const LONGEST: usize = 4094;
/// If more ports than this number are to be reserved, the ports are treated as a range of which Services use only some
/// ports.
const FEW: u32 = 64;

/// Reserves `ports`, so that the kernel does not choose these ports, now and after a restart. A write replaces the
/// whole list. So the new list has the ports that are reserved now, and all NodePorts, hostPorts and server ports that
/// the kernel may choose. If a user applies two remedies, the second list still has the ports of the first list.
///
/// The list must leave enough ports for outgoing connections, and fit into one write. Otherwise the list leaves out
/// NodePorts that no Service has, and then also hostPorts and server ports. If the shortest list is still too large,
/// the remedy is advice without a command.
pub(super) fn reserve(round: &Round<'_>, ports: &PortSet) -> Remedy {
    let snapshot = round.now;
    let node_ports = snapshot.cluster.node_port_range.known(Unread::Adds).map(|range| range.range);
    let ephemeral = snapshot.kernel.sysctls.ip_local_port_range.known(Unread::Adds).copied();
    let meeting = node_ports.filter(|range| ephemeral.is_some_and(|it| it.intersection(*range).is_some()));
    let choosable = ephemeral.map(PortSet::from).unwrap_or_default();
    let needed = used(round, &choosable, &NeededPorts::among(&choosable, round)).intersection(&choosable);
    let range = meeting.map(PortSet::from).unwrap_or_default();
    let all = ports.union(&range).union(&needed);
    let Reading::Seen(reserved) = &snapshot.kernel.sysctls.ip_local_reserved_ports else {
        return Step::advice(format!(
            "add {} to the current value of net.ipv4.ip_local_reserved_ports, and write the whole list: a write replaces the old list",
            if is_bearable(ephemeral, &PortSet::default(), &all) { all.to_string() } else { counted(ports) }
        ))
        .into();
    };
    let write = |ports: &PortSet| {
        let all = reserved.union(ports);
        let list = all.to_string();
        let can_be_typed = list.len() <= LONGEST && is_bearable(ephemeral, reserved, ports);
        let set = |effect| set_sysctl("net.ipv4.ip_local_reserved_ports", &list, "zz-node-ports.conf", effect);
        can_be_typed.then(|| set(Effect::Reserve(all)))
    };
    // If enough ports remain for outgoing connections, only the length of the list is the problem.
    let other = match is_bearable(ephemeral, reserved, &all) {
        true => {
            "run portreeve guard on the node: a list of all these ports is too long for one write, and the guard writes it in parts"
        }
        false => {
            "make the NodePort range narrower (--service-node-port-range of the API server), or move servers out of ip_local_port_range: too few ports are left for outgoing connections"
        }
    };
    write(&all).unwrap_or_else(|| {
        let few = if ports.len() > FEW { PortSet::default() } else { ports.clone() };
        let of_services = allocated(round).intersection(&range.union(&choosable)).union(&few);
        let kept = [of_services.union(&needed), of_services].iter().filter(|it| !it.is_empty()).find_map(write);
        match (kept, Step::advice(other)) {
            (Some(kept), advice) => kept.then(advice),
            (None, advice) => advice.into(),
        }
    })
}

/// NodePorts of Services, hostPorts, and ports of servers, as far as these ports were read. The guard reserves the same
/// ports. HostPorts are included, because some container runtimes bind a hostPort when the pod starts.
pub(super) fn used(round: &Round<'_>, choosable: &PortSet, needed: &NeededPorts) -> PortSet {
    let host_ports = round.host_ports().known(NAMED).into_iter();
    let host_ports = host_ports.flat_map(|all| all.ports().map(|((_, number), _)| number));
    allocated(round).union(&host_ports.collect::<PortSet>().intersection(choosable)).union(&needed.to_reserve())
}

/// `reserve` and the guard name unread inputs. A remedy reserves the ports that were read.
const NAMED: Unread = Unread::Reported("NodeReservation::unread");

fn allocated(round: &Round<'_>) -> PortSet {
    round.allocated().known(NAMED).into_iter().flat_map(|all| all.ports().map(|(number, _)| number)).collect()
}

/// Whether `more` ports can be reserved: outgoing connections keep enough ports, or lose only a few ports.
pub(super) fn is_bearable(ephemeral: Option<PortRange>, reserved: &PortSet, more: &PortSet) -> bool {
    let range = ephemeral.unwrap_or(PortRange::DEFAULT_EPHEMERAL);
    let choosable = PortSet::from(range).minus(reserved);
    let left = choosable.minus(more).len();
    left >= FEWEST_LEFT || (choosable.len() - left) * 16 <= left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, NodeReservation, findings::StepKind};
    use portreeve_facts::{
        Snapshot, Source, Why,
        healthy::{gap, objects},
    };

    fn reserve(snapshot: &Snapshot, ports: &PortSet) -> Remedy {
        super::reserve(&Limits::default().round(snapshot, None), ports)
    }

    fn commands(remedy: &Remedy) -> Vec<&str> {
        let commands = remedy.steps.iter().filter(|step| step.kind == StepKind::Command);
        commands.map(|step| step.text.as_str()).collect()
    }

    fn range(text: &str) -> PortSet {
        text.parse::<PortRange>().expect("a range").into()
    }

    #[test]
    fn reserving_keeps_what_somebody_else_reserved_and_never_guesses_it() {
        let ports = PortSet::from(PortRange::DEFAULT_NODE_PORTS);
        let mut world = Snapshot::healthy().ephemeral("1024 65535", "2703,31000-40000");
        let remedy = reserve(&world, &ports);
        let [now, for_good] = commands(&remedy)[..] else { panic!("two commands") };
        assert_eq!(now, "sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,10249-10250,10256,30000-40000\"");
        assert_eq!(
            for_good,
            "echo 'net.ipv4.ip_local_reserved_ports = 2703,10249-10250,10256,30000-40000' > /etc/sysctl.d/zz-node-ports.conf"
        );
        let other = reserve(&world, &[8443].into_iter().collect());
        let other = commands(&other)[0];
        assert!(other.ends_with("=\"2703,8443,10249-10250,10256,30000-40000\""), "it would undo the first: {other}");
        world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
        assert!(commands(&reserve(&world, &ports)).is_empty(), "it would forget what is reserved");
    }

    #[test]
    fn the_list_has_the_ports_that_reserve_and_the_guard_name() {
        let world = Snapshot::healthy().ephemeral("10000 29999", "").service("web", |it| it.node_port(12345));
        let world = world.pod("edge", |pod| pod.host_port(80, 12001));
        let named = NodeReservation::of(&world, None).expect("all was read").exposed;
        assert!(named.contains(12001) && named.contains(12345), "{named}");
        let list = commands(&reserve(&world, &[12001].into_iter().collect()))[0].to_owned();
        assert!(list.ends_with(&format!("=\"{named}\"")), "{list}");
    }

    #[test]
    fn the_list_has_the_ports_of_a_pod_that_may_be_here() {
        let world = Snapshot::healthy().ephemeral("1024 65535", "").pod("edge", |pod| {
            (pod.host_network, pod.node) = (true, Some("n2".to_owned()));
            let (host_port, host_ip, protocol) = (None, None, portreeve_facts::Protocol::Tcp);
            pod.ports.push(portreeve_facts::ContainerPort { port: 7000, host_port, host_ip, protocol });
        });
        let list = |world: &Snapshot| commands(&reserve(world, &[40080].into_iter().collect()))[0].to_owned();
        assert!(!list(&world).contains("7000"), "{}", list(&world));
        assert!(list(&world.clone().unnamed()).contains("=\"7000,"), "{}", list(&world.unnamed()));
    }

    #[test]
    fn where_the_list_was_not_read_ports_are_named_only_where_a_node_can_spare_them() {
        let advice = |range: &str| {
            let mut world = Snapshot::healthy().node_port_range(range).service("web", |it| it.node_port(40080));
            world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
            reserve(&world, &[40080, 40081].into_iter().collect()).steps[0].text.clone()
        };
        let spared = advice("40000-40100");
        assert!(spared.starts_with("add 40000-40100 to the current value"), "{spared}");
        let too_many = advice("32768-60999");
        assert!(too_many.starts_with("add 40080-40081") && !too_many.contains("32768"), "{too_many}");
    }

    #[test]
    fn a_node_keeps_ports_for_its_own_connections() {
        for wide in ["1-65535", "1024-65535", "20000-65535", "32768-60999", "30000-60000"] {
            let world = Snapshot::healthy().node_port_range(wide);
            let world = world.service("web", |it| it.node_port(40080)).service("other", |it| it.node_port(50080));
            for asked in [range(wide), [40080].into_iter().collect()] {
                let remedy = reserve(&world, &asked);
                let first = commands(&remedy)[0];
                assert_eq!(first, "sysctl -w net.ipv4.ip_local_reserved_ports=\"40080,50080\"", "{wide}");
                assert!(remedy.steps.last().is_some_and(|step| step.text.contains("--service-node-port-range")));
            }
        }
        let narrow = Snapshot::healthy().node_port_range("30000-50000");
        let remedy = reserve(&narrow, &range("30000-50000"));
        assert!(commands(&remedy)[0].ends_with("=\"30000-50000\""), "10,999 are left: {remedy:?}");
    }

    #[test]
    fn a_list_that_is_too_long_for_one_write_is_no_lack_of_ports() {
        let scattered: PortSet = (40_001..60_999u16).step_by(8).collect();
        let world = Snapshot::healthy().ephemeral("30000 60999", &scattered.to_string());
        let remedy = reserve(&world.service("web", |it| it.node_port(30080)), &[30080].into_iter().collect());
        let [step] = &remedy.steps[..] else { panic!("one step: {remedy:?}") };
        assert!(step.kind == StepKind::Advice && step.text.contains("too long for one write"), "{step:?}");
    }

    #[test]
    fn what_one_pod_declares_takes_no_more_than_a_node_can_spare() {
        let declaring = |step: usize| {
            let mut world = Snapshot::healthy().pod("media", |pod| pod.host_network = true);
            let pod = &mut objects(&mut world.cluster.pods)[0];
            let port = pod.ports.first().cloned();
            let port = port.unwrap_or_else(|| {
                pod.host_port(1, 1);
                pod.ports.remove(0)
            });
            let numbers = (32768..=60999).step_by(step);
            pod.ports = numbers.map(|number| portreeve_facts::ContainerPort { port: number, ..port.clone() }).collect();
            world
        };
        let asked: PortSet = [31000].into_iter().collect();
        for step in [1, 2] {
            let remedy = reserve(&declaring(step), &asked);
            assert_eq!(commands(&remedy)[0], "sysctl -w net.ipv4.ip_local_reserved_ports=\"31000\"", "{remedy:?}");
        }
        // The range is the whole ephemeral port range, so outgoing connections would have no port.
        let remedy = reserve(&declaring(1), &range("32768-60999"));
        assert!(commands(&remedy).is_empty(), "{remedy:?}");
    }

    #[test]
    fn a_node_with_few_ports_may_spare_one() {
        let world = Snapshot::healthy().ephemeral("32768 36863", "");
        let first = |ports: &PortSet| commands(&reserve(&world, ports)).first().map(|it| (*it).to_owned());
        assert!(first(&[33000].into_iter().collect()).is_some_and(|it| it.ends_with("=\"33000\"")));
        assert_eq!(first(&range("33000-36000")), None);
        // A sixteenth of the remaining ports may be reserved.
        assert!(first(&range("33000-33239")).is_some_and(|it| it.ends_with("=\"33000-33239\"")));
        assert_eq!(first(&range("33000-33240")), None);
    }
}
