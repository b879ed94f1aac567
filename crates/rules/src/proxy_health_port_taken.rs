//! Another program has the port of kube-proxy's health check.

use std::net::SocketAddr;

use super::{
    Limits, Round, Rule, ids,
    remedies::move_off,
    socket_needs::{Ports, SocketNeed},
    wording::{capital, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Need, owner_name};
use portreeve_facts::{Gap, Mode, Owner, Protocol, Reading, Snapshot, Socket, Source, Why, if_requested};

pub(super) static RULE: Rule = Rule::of(&ids::HEALTH_CHECK_UNSERVED, &["proxy"], &[Source::Listeners], check)
    .sockets(&[SocketNeed::Owners(Ports::Proxy)]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let listeners = round.listeners().get()?;
    let silence = match &snapshot.kernel.proxy.mode {
        Reading::Seen(_) => None,
        // If kube-proxy does not run, no process needs the port. A kube-proxy that has answered for its settings runs.
        Reading::Gap(gap) if gap.why == Why::Unreachable && snapshot.kernel.proxy.config.gap().is_some() => {
            return Ok(Vec::new());
        }
        Reading::Gap(gap) => Some(gap),
    };
    if silence.is_none() {
        // kube-proxy has answered, so a refused request for the settings is a failure.
        let failed = |gap: Gap| if gap.why == Why::Unreachable { Gap { why: Why::Torn, ..gap } } else { gap };
        if_requested(snapshot.proxy_config()).map_err(failed)?;
    }
    let mut needs = round.needs().with(&[Source::ProxyConfig])?.iter();
    let health = needs.find_map(|need| match need {
        Need::ProxyHealth(address) => Some((*address, need.at())),
        _ => None,
    });
    let Some((address, at)) = health else { return Ok(Vec::new()) };
    let mut sockets = listeners.at((Protocol::Tcp, address.port())).to_vec();
    sockets.retain(|socket| at.meets(socket) != Some(false));
    let proxy = round.proxy();
    // With `--proxy-mode`, the user states that kube-proxy runs. A program that has both ports of kube-proxy is
    // kube-proxy in this case, even without an answer.
    let stated = snapshot.overrides.proxy_mode.as_ref();
    let is_reported = stated.is_some_and(|mode| Mode::KUBE_PROXY.contains(&mode.value));
    let verdict = match silence {
        _ if sockets.is_empty() || sockets.iter().any(|socket| proxy.shares_owner(socket)) => Verdict::Healthy,
        Some(_) if is_reported && sockets.iter().any(|socket| proxy.hangs(socket)) => Verdict::Healthy,
        Some(gap) => Verdict::Unknown(gap.clone()),
        None if sockets.iter().all(|socket| proxy.certainly_lacks(socket)) => match round.in_vrfs(&sockets) {
            Some(gap) => Verdict::Unknown(gap),
            None => Verdict::Problem(evidence(snapshot, address, &sockets)),
        },
        None => {
            let beside = || sockets.iter().find_map(|socket| proxy.unread_beside(socket));
            // The result depends on the reason, in the same way as for the process of a listener.
            let of_proxy = || Some(Gap { source: Source::Processes, ..snapshot.kernel.proxy.process.gap()?.clone() });
            let gap = why_not_compared(&sockets).or_else(beside).or_else(of_proxy);
            Verdict::Unknown(gap.unwrap_or_else(|| unknown(address.port())))
        }
    };
    let port = (Protocol::Tcp, address.port());
    Ok(vec![Judgement::on_port(Subject::this_node(snapshot), port, verdict)])
}

fn why_not_compared(sockets: &[&Socket]) -> Option<Gap> {
    sockets.iter().find_map(|socket| match &socket.owner {
        Owner::Held(holder) => holder.process.gap().cloned(),
        _ => None,
    })
}

fn unknown(port: u16) -> Gap {
    let detail = format!("it is not known whether the listener on {port}/tcp is kube-proxy");
    Gap::new(Source::Processes, Why::Ambiguous, detail)
}

fn evidence(snapshot: &Snapshot, address: SocketAddr, sockets: &[&Socket]) -> Evidence {
    let port = address.port();
    let owner = owner_name(snapshot, &sockets[0].owner);
    let sentence = format!(
        "{} has port {port}/tcp, on which kube-proxy reports the health of this node: load balancers get the answer of another program.",
        capital(&owner)
    );
    let evidence = Evidence::new(Severity::Warning, sentence).value("wanted by kube-proxy", format!("{address}/tcp"));
    with_sockets(evidence, "listener", snapshot, sockets)
        .remedy(move_off(snapshot, sockets[0]))
        .remedy(Step::advice(
            "if the program is Calico in eBPF mode, give FelixConfiguration default another bpfKubeProxyHealthzPort, or stop kube-proxy",
        ))
        .remedy(Step::advice("give kube-proxy another healthzBindAddress, and set the new port in the health check of every load balancer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        Learned,
        healthy::{daemon, gap, held, proxy_holder, seen},
    };

    fn node() -> Subject {
        Subject::node("n1", None)
    }

    fn without_socket() -> Snapshot {
        let mut world = Snapshot::healthy();
        seen(&mut world.kernel.listeners).retain(|socket| socket.local_port != 10256);
        world
    }

    fn taken() -> Snapshot {
        without_socket().listens_as("[::]:10256", daemon("calico-node", 9))
    }

    fn configured(world: Snapshot, address: &str) -> Snapshot {
        world.with_config(|config| config.healthz_bind_address = Some(address.to_owned()))
    }

    fn hanging() -> Snapshot {
        let mut hangs = Snapshot::healthy();
        hangs.kernel.proxy.mode = gap(Source::ProxyMode, Why::TimedOut);
        hangs.kernel.proxy.cgroup = gap(Source::Cgroups, Why::TimedOut);
        hangs.kernel.proxy.process = gap(Source::Processes, Why::TimedOut);
        hangs
    }

    #[test]
    fn a_kube_proxy_that_hangs_is_not_known_by_its_sockets() {
        let gap = expect_unknown(&RULE, &hanging(), &node());
        assert_eq!(gap.why, Why::TimedOut, "one program may have 10249 and 10256");
    }

    #[test]
    fn a_supposed_mode_states_nothing_about_the_owner_of_both_ports() {
        let mut supposed = hanging();
        supposed.suppose_mode(Mode::Iptables, "--set");
        assert_eq!(expect_unknown(&RULE, &supposed, &node()).why, Why::TimedOut);
        let mut stated = hanging();
        stated.overrides.proxy_mode = Some(Learned { value: Mode::Ipvs, place: "--proxy-mode".to_owned() });
        stated.suppose_mode(Mode::Iptables, "--set");
        expect_healthy(&RULE, &stated, &node());
    }

    #[test]
    fn a_reported_kube_proxy_that_hangs_is_the_owner_of_both_ports() {
        let mut hangs = hanging();
        hangs.overrides.proxy_mode = Some(Learned { value: Mode::Iptables, place: "--proxy-mode".to_owned() });
        expect_healthy(&RULE, &hangs, &node());
        seen(&mut hangs.kernel.listeners).retain(|socket| socket.local_port != 10256);
        let of_two = hangs.listens_as("[::]:10256", daemon("calico-node", 9));
        assert_eq!(expect_unknown(&RULE, &of_two, &node()).why, Why::TimedOut, "another program has the health port");
    }

    #[test]
    fn whoever_answers_in_kube_proxys_place_is_named() {
        let evidence = expect_problem(&RULE, &taken(), &node());
        assert_eq!(evidence.severity, Severity::Warning);
        let words = "Process calico-node has port 10256/tcp, on which kube-proxy reports the health of this node";
        assert!(evidence.summary.starts_with(words), "{}", evidence.summary);
        assert!(evidence.values.contains(&("listener", "tcp LISTEN [::]:10256".to_owned())), "{evidence:#?}");
        let moved = &evidence.remedies[0].steps[0].text;
        assert!(moved.starts_with("move process calico-node off port 10256/tcp"), "{moved}");
        assert!(evidence.remedies[1].steps[0].text.contains("bpfKubeProxyHealthzPort"), "{evidence:#?}");
    }

    #[test]
    fn where_kube_proxy_has_its_socket_or_nobody_has_one_it_is_healthy() {
        expect_healthy(&RULE, &Snapshot::healthy(), &node());
        expect_healthy(&RULE, &without_socket(), &node());
        expect_healthy(&RULE, &taken().listens_as("0.0.0.0:10256", proxy_holder()), &node());
        expect_healthy(&RULE, &without_socket().listens_as("0.0.0.0:10257", daemon("other", 9)), &node());
        expect_healthy(&RULE, &without_socket().listens_udp("0.0.0.0:10256"), &node());
    }

    #[test]
    fn the_configured_address_counts() {
        expect_healthy(&RULE, &configured(taken(), "0.0.0.0:10300"), &node());
        let moved = configured(without_socket().listens_as("0.0.0.0:10300", daemon("other", 9)), "0.0.0.0:10300");
        assert!(expect_problem(&RULE, &moved, &node()).summary.contains("port 10300/tcp"));
        let moved = configured(without_socket().listens_as("0.0.0.0:10300", daemon("other", 9)), ":10300");
        expect_problem(&RULE, &moved, &node());
        let beside =
            |address: &str| configured(without_socket().listens_as(address, daemon("other", 9)), "127.0.0.1:10256");
        expect_healthy(&RULE, &beside("192.0.2.1:10256"), &node());
        expect_problem(&RULE, &beside("127.0.0.1:10256"), &node());
        expect_problem(&RULE, &beside("0.0.0.0:10256"), &node());
        expect_problem(&RULE, &without_socket().listens_as("192.0.2.1:10256", daemon("other", 9)), &node());
    }

    #[test]
    fn an_address_without_a_port_has_the_default_one() {
        for address in ["0.0.0.0", "192.0.2.1", "::"] {
            let summary = expect_problem(&RULE, &configured(taken(), address), &node()).summary;
            assert!(summary.contains("port 10256/tcp"), "{summary}");
        }
    }

    #[test]
    fn a_proxy_that_answers_nobody_wants_no_port() {
        for off in ["", "0.0.0.0:0"] {
            expect_healthy(&RULE, &configured(taken(), off), &node());
        }
        assert_eq!(expect_unknown(&RULE, &configured(taken(), "here"), &node()).source, Source::ProxyConfig);
    }

    #[test]
    fn a_proxy_whose_settings_were_not_read_may_have_another_port() {
        for world in [taken(), without_socket()] {
            let mut world = world;
            world.kernel.proxy.config = gap(Source::ProxyConfig, Why::TimedOut);
            assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::ProxyConfig);
            let mut refused = world.clone();
            refused.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
            assert_eq!(expect_unknown(&RULE, &refused, &node()).why, Why::Torn, "kube-proxy answered for its mode");
            world.cluster.proxy_config = Snapshot::healthy().kernel.proxy.config;
            let found = check(&Round::of(&world, None, 60), &Limits::default()).expect("the cluster has them");
            assert!(!found.iter().any(|it| matches!(it.verdict, Verdict::Unknown(_))), "{found:?}");
        }
    }

    #[test]
    fn where_no_kube_proxy_answers_whoever_programs_services_has_it() {
        expect_healthy(&RULE, &taken().without_proxy(), &node());
        expect_healthy(&RULE, &taken().with_mode(Mode::Cilium), &node());
        let mut hangs = taken();
        hangs.kernel.proxy.mode = gap(Source::ProxyMode, Why::TimedOut);
        assert_eq!(expect_unknown(&RULE, &hangs, &node()).source, Source::ProxyMode);
        let mut refused_once = taken();
        refused_once.kernel.proxy.mode = gap(Source::ProxyMode, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &refused_once, &node()).why, Why::Unreachable, "its settings were read");
    }

    #[test]
    fn an_owner_that_cannot_be_compared_is_unknown() {
        let mut world = taken();
        world.kernel.proxy.cgroup = gap(Source::Cgroups, Why::NotPermitted);
        world.kernel.proxy.process = gap(Source::Processes, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Processes);
        world.kernel.proxy.process = gap(Source::ProxyProcess, Why::Torn);
        let torn = expect_unknown(&RULE, &world, &node());
        assert_eq!((torn.source, torn.why), (Source::Processes, Why::Torn), "a failure is not an ambiguous owner");
        let mut world = taken().listens("0.0.0.0:10256");
        seen(&mut world.kernel.listeners).last_mut().expect("one").owner = portreeve_facts::Owner::NotRead;
        assert_eq!(expect_unknown(&RULE, &world, &node()).why, Why::Ambiguous, "one of two may be kube-proxy");
    }

    #[test]
    fn an_earlier_process_of_kube_proxys_service_may_be_kube_proxy_before_a_restart() {
        let of = |path: &str, started: u64| {
            let in_group = |started: u64| {
                let mut owner = held(path, None, "kube-proxy", 9);
                if let Owner::Held(holder) = &mut owner {
                    seen(&mut holder.process).started = started;
                }
                owner
            };
            let mut world = without_socket().listens_as("[::]:10256", in_group(started));
            let Owner::Held(proxy) = in_group(700) else { unreachable!("a process") };
            (world.kernel.proxy.cgroup, world.kernel.proxy.process) = (proxy.cgroup, proxy.process);
            world
        };
        let service = "/system.slice/kube-proxy.service";
        let torn = expect_unknown(&RULE, &of(service, 600), &node());
        assert_eq!((torn.source, torn.why), (Source::ProxyProcess, Why::Torn));
        expect_problem(&RULE, &of(service, 800), &node());
        expect_healthy(&RULE, &of(service, 700), &node());
        expect_problem(&RULE, &of("/user.slice/session-1.scope", 600), &node());
        expect_healthy(&RULE, &of(&format!("/system.slice/docker-{}.scope", "0a".repeat(32)), 600), &node());
        let mut unread = of(service, 600);
        if let Owner::Held(holder) = &mut seen(&mut unread.kernel.listeners).last_mut().expect("one").owner {
            holder.cgroup = gap(Source::Cgroups, Why::Torn);
        }
        let failed = expect_unknown(&RULE, &unread, &node());
        assert_eq!((failed.source, failed.why), (Source::Cgroups, Why::Torn));
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = taken();
        world.kernel.listeners = gap(Source::Listeners, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Listeners);
    }
}
