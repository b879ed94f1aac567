use super::*;
use crate::{Limits, reservation::reserve};
use jiff::Timestamp;
use portreeve_facts::{
    Source, Why,
    healthy::{PEER, gap, held, ip},
};

/// Names of Services: a name that breaks a shell command if it is not quoted, and a name that begins like an option.
const HOSTILE: [(&str, &str); 2] = [("a'b\"c $(touch x)`touch x`;touch x\n&", "shop"), ("--help", "-n")];

fn service(name: &str, namespace: &str) -> Service {
    let world = Snapshot::healthy().service("web", |it| {
        it.node_port(30080).external_ip(PEER).with(|service| {
            service.name = name.to_owned();
            service.namespace = namespace.to_owned();
            service.ports.push(ServicePort { port: 81, node_port: Some(30081), ..service.ports[0].clone() });
        })
    });
    Service::clone(&world.cluster.services.seen().expect("services")[0])
}

fn claims(service: &Service) -> Vec<ExternalAddress<'_>> {
    ExternalAddress::of(&Snapshot::healthy(), service).collect()
}

/// The commands of a remedy. If a command changes the node or the cluster, the step of the command must have an
/// `Effect`. All other commands only show something, open an editor, or make the last change permanent.
#[track_caller]
fn commands(remedy: impl Into<Remedy>) -> Vec<String> {
    let steps = remedy.into().steps.into_iter().filter(|step| step.kind == crate::findings::StepKind::Command);
    steps
        .map(|step| {
            let of_kubectl = step.text.starts_with("kubectl ");
            let shows = ["ss ", "iptables-save ", "echo '", "crictl ps ", "systemctl "]
                .iter()
                .any(|it| step.text.starts_with(it))
                || of_kubectl && [" get ", " edit service"].iter().any(|it| step.text.contains(it));
            assert!(shows != step.effect().is_some(), "{}: {:?}", step.text, step.effect());
            step.text
        })
        .collect()
}

fn unnamed(protocol: Protocol) -> Socket {
    let mut world = Snapshot::healthy().listens("0.0.0.0:30080");
    let sockets = portreeve_facts::healthy::seen(&mut world.kernel.listeners);
    let mut socket = sockets.pop().expect("a listener");
    if let portreeve_facts::Owner::Held(holder) = &mut socket.owner {
        holder.process = gap(Source::Processes, Why::NotPermitted);
        holder.cgroup = gap(Source::Cgroups, Why::NotPermitted);
    }
    socket.protocol = protocol;
    socket
}

fn of_unit(path: &str, command: &str) -> Socket {
    let world = Snapshot::healthy().listens_as("0.0.0.0:9090", held(path, None, command, 1));
    world.kernel.listeners.seen().expect("listeners").last().expect("one").clone()
}

fn with_gone_pod() -> (Snapshot, Socket) {
    of_pod_without_object("0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f")
}

fn of_pod_without_object(uid: &str) -> (Snapshot, Socket) {
    let mut world = Snapshot::healthy().listens_as("0.0.0.0:9090", held("/kubepods/x", Some(uid), "nginx", 1));
    (world.kernel.booted, world.pods_at) = (Some(Timestamp::UNIX_EPOCH), Some(world.at));
    let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one").clone();
    (world, socket)
}

#[test]
fn a_service_of_a_file_is_told_what_happens_without_the_field() {
    let advice = |kind, has_port: bool| {
        let mut service = Service { uid: None, kind, health_check_kept: false, ..service("web", "shop") };
        service.ports[0].fixed = Some(true);
        let remedy = another_number(None, &service, service.ports.first().filter(|_| has_port));
        remedy.steps[0].text.split_once(", or").map(|(_, rest)| rest.to_owned())
    };
    let chosen = Some(" remove the field so that the API server chooses a number".to_owned());
    assert_eq!(advice(ServiceKind::NodePort, true), chosen);
    assert_eq!(advice(ServiceKind::LoadBalancer, true), Some(" remove the field".to_owned()), "it needs no nodePort");
    assert_eq!(advice(ServiceKind::LoadBalancer, false), chosen, "a health check needs a port");
}

/// Prints the commands of every function of `remedies.rs`, for hostile names. `tests/anywhere` runs each line in a
/// shell, and checks that no function is missing.
#[test]
fn every_command() {
    let mut all = Vec::new();
    for (name, namespace) in HOSTILE {
        let service = service(name, namespace);
        for port in &service.ports {
            all.extend(commands(move_service(Some(30005), &service, port)));
        }
        all.extend(commands(move_service(None, &service, &service.ports[0])));
        all.extend(commands(another_number(Some(30005), &service, Some(&service.ports[0]))));
        all.extend(commands(another_number(None, &service, None)));
        all.extend(commands(another_number(None, &Service { uid: None, ..service.clone() }, None)));
        all.extend(commands(release(&claims(&service)[0])));
        all.extend(commands(release_all(claims(&service).iter().take(1).collect())));
        all.extend(commands(keep_external_ips_out()));
        all.extend(commands(endpoints_of(&service)));
        all.extend(commands(proxy_pods(name)));
        let of_status = ExternalAddress { field: Field::LoadBalancer, ..claims(&service)[0] };
        all.extend(commands(release_to(&of_status, "another")));
        all.extend(commands(choose_another_health_check_port(&service)));
        all.extend(commands(set_traffic_policy(&service, "Cluster")));
        all.extend(commands(health_check_events(&service)));
        let address = Address { ip: ip(PEER), prefix: 32, link: name.into() };
        all.extend(commands(delete_address(&address)));
        all.extend(commands(another_port(namespace, name, None)));
        all.extend(commands(delete_rule(&format!("ip nat {name}"), 7)));
    }
    let world = Snapshot::healthy().pod("api", |_| ());
    let pod = world.cluster.pods.seen().expect("pods")[0].clone();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        all.extend(commands(who_holds(protocol, 30080)));
        all.extend(commands(move_off(&world, &unnamed(protocol))));
        all.extend(commands(move_off_unless(&world, &unnamed(protocol), "it may be so")));
    }
    all.extend(commands(move_off(&world, &of_unit("/init.scope", "systemd"))));
    all.extend(commands(move_off(&world, &of_unit("/user.slice/user-7.slice/user@7.service/init.scope", "systemd"))));
    let (gone, socket) = with_gone_pod();
    all.extend(commands(move_off(&gone, &socket)));
    all.extend(commands(some_addresses(PortOf::Pod(
        &world.clone().pod("web", |_| ()).cluster.pods.seen().expect("pods")[0],
    ))));
    all.extend(commands(without_stub()));
    all.extend(commands(reserve(&Limits::default().round(&world, None), &PortRange::DEFAULT_NODE_PORTS.into())));
    let ports = [30080].into_iter().collect();
    let effect = Effect::Reserve(ports);
    all.extend(commands(set_sysctl("net.ipv4.ip_local_reserved_ports", "30080", "zz-node-ports.conf", effect)));
    all.extend(commands(choose_from(PortRange { first: 32768, last: 65535 })));
    all.extend(commands(choose_in_pod(&pod, None, [8000].into_iter().collect())));
    all.extend(commands(give_node_ports_back()));
    all.extend(
        [clean_up(None, false), remove_ipvs(&["kube-ipvs0"]), remove_nftables(), untracked().into()]
            .into_iter()
            .flat_map(commands),
    );
    insta::assert_snapshot!("commands", serde_json::to_string_pretty(&all).expect("JSON"));
}

#[test]
fn a_port_is_changed_where_the_change_lasts() {
    for (kind, name, place) in [
        ("DaemonSet", "web", "in DaemonSet shop/web"),
        ("ReplicaSet", "web-5c4", "in Deployment shop/web"),
        ("ReplicaSet", "my-app", "in ReplicaSet shop/my-app"),
        ("Node", "n1", "in its manifest on its node"),
    ] {
        let controller = Controller { kind: kind.to_owned(), name: name.to_owned() };
        let step = another_port("shop", "web-1", Some(&controller));
        assert_eq!(step.text, format!("give pod shop/web-1 another port, {place}"));
    }
}

#[test]
fn a_patch_changes_nothing_of_a_service_that_has_changed() {
    let service = service("web", "default");
    for (index, port) in service.ports.iter().enumerate() {
        let number = port.node_port.expect("a nodePort");
        let patch = format!(
            r#"'[{{"op":"test","path":"/spec/ports/{index}/nodePort","value":{number}}},{{"op":"replace","path":"/spec/ports/{index}/nodePort","value":30005}}]'"#
        );
        let command = commands(move_service(Some(30005), &service, port)).remove(0);
        assert_eq!(command, format!("kubectl -n default patch service web --type=json -p {patch}"));
    }
    let patch = r#"'[{"op":"test","path":"/spec/externalIPs/0","value":"192.0.2.9"},{"op":"remove","path":"/spec/externalIPs/0"}]'"#;
    let command = commands(release(&claims(&service)[0])).remove(0);
    assert_eq!(command, format!("kubectl -n default patch service web --type=json -p {patch}"));
}

#[test]
fn the_lasting_words_of_a_move_do_not_depend_on_what_is_free() {
    let service = service("web", "default");
    let words = |free| move_service(free, &service, &service.ports[0]).steps[0].in_lasting_words().to_owned();
    assert_eq!(words(Some(30005)), "give Service default/web another nodePort");
    assert_eq!((words(Some(30006)), words(None)), (words(Some(30005)), words(Some(30005))));
}

#[test]
fn a_socket_without_a_name_is_looked_for_before_it_is_moved() {
    let world = Snapshot::healthy().listens("0.0.0.0:30080");
    let named = world.kernel.listeners.seen().expect("listeners").last().expect("one");
    assert_eq!(move_off(&world, named), Step::advice("move process nginx off port 30080/tcp").into());
    for (link, words) in
        [("", "the kernel opened port 30080/tcp for a program"), ("vxlan0", "give tunnel vxlan0 another")]
    {
        let of_kernel = Socket { owner: Owner::Kernel { link: link.to_owned() }, ..named.clone() };
        let text = move_off(&world, &of_kernel).steps[0].text.clone();
        assert!(text.starts_with(words), "nobody can move the kernel: {text}");
    }
    for (protocol, command) in
        [(Protocol::Tcp, "ss -Htlnp"), (Protocol::Udp, "ss -Hulnp"), (Protocol::Sctp, "ss -HSlnp")]
    {
        let [search, step] = &move_off(&world, &unnamed(protocol)).steps[..] else { panic!("two steps") };
        assert_eq!(search.text, format!("{command} 'sport = :30080'"));
        assert!(
            search
                .in_lasting_words()
                .starts_with(&format!("find the process on port 30080/{protocol} with `{command}"))
        );
        assert_eq!(
            step.text,
            format!(
                "move the process that the command names off port 30080/{protocol}; only root on the node sees the name"
            )
        );
    }
}

#[test]
fn a_unit_is_ended_where_nothing_can_need_it() {
    let world = Snapshot::healthy();
    let words = |path: &str, command: &str| {
        let steps = move_off(&world, &of_unit(path, command)).steps;
        steps.into_iter().map(|step| step.text).collect::<Vec<_>>()
    };
    let socket = "if no program needs the socket unit, `systemctl disable --now cockpit.socket`, and stop the service that it starts; \
                  otherwise give the unit another port than 9090/tcp";
    assert_eq!(words("/system.slice/cockpit.socket", "systemd"), [socket]);
    assert_eq!(
        words("/system.slice/web.service", "python3"),
        ["move process python3 of systemd unit web.service off port 9090/tcp, or, if it is not needed, \
          `systemctl disable --now web.service`"]
    );
    let escaped = words(r"/system.slice/a\x2db.socket", "systemd").remove(0);
    assert!(escaped.contains(r"`systemctl disable --now 'a\x2db.socket'`"), "{escaped}");
    let of_user = words("/user.slice/user-7.slice/user@7.service/app.slice/web.service", "web").remove(0);
    assert!(of_user.contains("`systemctl --user --machine=7@ disable --now web.service`"), "{of_user}");
    let init = words("/init.scope", "systemd");
    assert_eq!(init[0], "systemctl list-sockets");
    assert!(init[1].contains("the socket unit with port 9090/tcp"), "{init:?}");
    for kept in ["kubelet.service", "containerd.service", "crio.service", "sshd.service", "ssh.socket", "k3s.service"] {
        let words = words(&format!("/system.slice/{kept}"), "x").remove(0);
        assert!(words.starts_with("move ") && !words.contains("systemctl"), "the node needs it: {words}");
    }
    assert_eq!(words("/user.slice/user-7.slice/session-3.scope", "web"), ["move process web off port 9090/tcp"]);
}

#[test]
fn what_outlived_its_pod_is_looked_at_before_it_is_ended() {
    let (mut world, socket) = with_gone_pod();
    let [look, end] = &move_off(&world, &socket).steps[..] else { panic!("two steps") };
    assert_eq!(look.text, "crictl ps -a --label io.kubernetes.pod.uid=0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f");
    assert!(end.text.ends_with("end the process that has port 9090/tcp"), "{end:?}");
    world.pods_at = None;
    let moved = Step::advice("move process nginx off port 9090/tcp").into();
    assert_eq!(move_off(&world, &socket), moved);
    // The uid of a static pod is a hash.
    for uid in ["0e6a3a0c5a0b4b1e8d6e3f2b1c0d9e8f", "0e6a3a0c5a0b4b1e8d6e3f2b1c0d9e8f0000"] {
        let (world, socket) = of_pod_without_object(uid);
        assert_eq!(move_off(&world, &socket), moved, "{uid}");
    }
}

#[test]
fn wireguard_is_an_example_of_who_has_a_port_of_udp_without_a_process() {
    let mut world = Snapshot::healthy();
    let words = |world: &Snapshot, protocol: Protocol| {
        let socket = Socket { protocol, owner: Owner::Kernel { link: String::new() }, ..of_unit("/", "x") };
        move_off(world, &socket).steps.remove(0).text
    };
    assert!(words(&world, Protocol::Udp).contains("such as WireGuard, or a tunnel in another network namespace"));
    let interfaces = std::sync::Arc::make_mut(portreeve_facts::healthy::seen(&mut world.kernel.interfaces));
    interfaces.links[0].kind = Some("wireguard".to_owned());
    let name = interfaces.links[0].name.clone();
    let reported = words(&world, Protocol::Udp);
    assert!(
        reported.contains(&format!("such as WireGuard, whose port `wg show {name} listen-port` prints")),
        "{reported}"
    );
    assert!(words(&world, Protocol::Tcp).contains("such as an NFS server"));
}

#[test]
fn what_sets_a_sysctl_for_good_is_read_after_the_files_of_distributions() {
    let reserved = reserve(&Limits::default().round(&Snapshot::healthy(), None), &[30080].into_iter().collect());
    let chosen = choose_from(PortRange::DEFAULT_EPHEMERAL);
    for remedy in [reserved, chosen] {
        let file = remedy.steps.iter().find_map(|step| step.text.split_once("/etc/sysctl.d/")).expect("a file").1;
        assert!(["99-sysctl.conf", "k8s.conf"].iter().all(|other| file > *other), "{file}");
    }
}
