use super::*;
use portreeve_facts::{
    Cgroup, Holder, Source, Why,
    healthy::{PRIMARY, daemon, gap, held, seen},
};

fn with_holder(world: &Snapshot, change: impl FnOnce(&mut Holder)) -> Snapshot {
    let mut world = world.clone();
    let socket = seen(&mut world.kernel.listeners).last_mut().expect("one");
    let Owner::Held(holder) = &mut socket.owner else { panic!("held") };
    change(holder);
    world
}

fn rootless(holder: &mut Holder) {
    let Reading::Seen(cgroup) = &mut holder.cgroup else { panic!("seen") };
    (cgroup.path, cgroup.pod) = ("/".to_owned(), None);
}

#[test]
fn a_holder_has_the_best_name_that_is_known() {
    let world = Snapshot::healthy().pod("web", |pod| pod.config_hash = Some("hash-of-web".to_owned()));
    let name = |owner: &Owner| owner_name(&world, owner);
    let kernel = |link: &str| Owner::Kernel { link: link.to_owned() };
    assert_eq!(name(&kernel("")), "the kernel");
    assert_eq!(name(&kernel("vxlan0")), "the kernel (tunnel vxlan0)");
    let pod = |uid: &str| {
        let world = world.clone().listens("0.0.0.0:1");
        let world = with_holder(&world, |holder| {
            holder.process = gap(Source::Processes, Why::NotPermitted);
            let Reading::Seen(Cgroup { pod: Some(pod), .. }) = &mut holder.cgroup else { panic!("a pod") };
            pod.pod_uid = uid.to_owned();
        });
        owner_name(&world, &world.kernel.listeners.seen().expect("listeners").last().expect("one").owner)
    };
    assert_eq!(pod("uid-web"), "pod default/web");
    assert_eq!(pod("hash-of-web"), "pod default/web");
    assert_eq!(pod("uid-other"), "a pod whose name is not known");
    let decoy = Snapshot::healthy().pod("decoy", |pod| pod.config_hash = Some("uid-web".to_owned())).pod("web", |_| ());
    let pods = decoy.cluster.pods.seen().expect("pods");
    assert_eq!(pod_of_uid(pods, "uid-web").map(|pod| pod.name.as_str()), Some("web"), "whoever comes first");
    let unnamed = |mut owner: Owner, root: bool| {
        let Owner::Held(holder) = &mut owner else { panic!("held") };
        holder.process = gap(Source::Processes, Why::NotPermitted);
        if root {
            rootless(holder);
        }
        name(&owner)
    };
    assert_eq!(unnamed(daemon("sshd", 7), false), "systemd unit sshd.service");
    assert_eq!(unnamed(daemon("sshd", 7), true), "a process whose name could not be read");
}

#[test]
fn it_is_told_when_a_holder_started_where_that_is_known() {
    let mut world = with_holder(&Snapshot::healthy().listens("0.0.0.0:1"), |holder| {
        if let Reading::Seen(process) = &mut holder.process {
            process.started = 12_345;
        }
    });
    let owner = world.kernel.listeners.seen().expect("listeners").last().expect("one").owner.clone();
    let process = |world: &Snapshot| {
        let (_, value) = owner_evidence(world, &owner).into_iter().find(|(key, _)| *key == "process").expect("one");
        value.split_once(')').expect("a pid").1.to_owned()
    };
    assert_eq!(process(&world), "");
    world.kernel.booted = Some("2026-11-01T10:00:00.5Z".parse().expect("a time"));
    assert_eq!(process(&world), ", started 2026-11-01T10:02:03Z");
}

#[test]
fn a_unit_of_systemd_is_read_from_the_path_as_systemd_reads_it() {
    let unit = |path: &str| {
        let owner = held(path, None, "x", 1);
        unit_of(&owner).map(|unit| (unit.name.to_owned(), unit.user))
    };
    let of_system = |name: &str| Some((name.to_owned(), None));
    for (path, name) in [
        ("/system.slice/cockpit.socket", "cockpit.socket"),
        (r"/system.slice/system-web\x2dapp.slice/web\x2dapp@1.service", r"web\x2dapp@1.service"),
        ("/podruntime.slice/runtime.slice/containerd.service", "containerd.service"),
        ("/kubelet.service", "kubelet.service"),
        ("/system.slice/_tasks.service", "tasks.service"),
        ("/system.slice/docker.service/nested/other.service", "docker.service"),
        ("/docker/0123/system.slice/web.service", "web.service"),
        ("/init.scope", "init.scope"),
        ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
    ] {
        assert_eq!(unit(path), of_system(name), "{path}");
    }
    let of_user = "/user.slice/user-1000.slice/user@1000.service/app.slice/web.service";
    assert_eq!(unit(of_user), Some(("web.service".to_owned(), Some(1000))));
    for path in [
        "/",
        "/system.slice",
        "/system.slice/docker-0123.scope/system.slice/web.service",
        "/user.slice/user-1000.slice/session-3.scope",
        "/docker/0123/web.service",
        "/kubepods/burstable/pod0123/0123/system.slice/web.service",
        "/machine.slice/node.scope/system.slice/web.service",
        "/system.slice/a b.service",
        "/system.slice/`x`.service",
    ] {
        assert_eq!(unit(path), None, "{path}");
    }
    assert_eq!(unit_of(&held("/system.slice/web.service", Some("uid-web"), "x", 1)), None, "a pod is no unit");
}

#[test]
fn a_unit_is_named_where_its_process_does_not_name_it() {
    let world = Snapshot::healthy();
    let name = |path: &str, command: &str| owner_name(&world, &held(path, None, command, 1));
    assert_eq!(name("/system.slice/cockpit.socket", "systemd"), "systemd unit cockpit.socket");
    assert_eq!(name("/system.slice/cockpit.socket", "cockpit-tls"), "systemd unit cockpit.socket");
    assert_eq!(name("/init.scope", "systemd"), "systemd (a socket unit)");
    assert_eq!(name("/system.slice/web.service", "python3"), "process python3 of systemd unit web.service");
    assert_eq!(name("/system.slice/systemd-resolved.service", "systemd-resolve"), "process systemd-resolve");
    let squatter = "/system.slice/squatter.service";
    assert_eq!(name(squatter, "squatter"), "process squatter");
    assert_eq!(name(squatter, "s"), "process s of systemd unit squatter.service", "the name hides no unit");
    assert_eq!(name(squatter, ""), "systemd unit squatter.service");
    assert_eq!(name("/", ""), UNNAMED);
    let of_user = "/user.slice/user-7.slice/user@7.service/app.slice/web.service";
    assert_eq!(name(of_user, "python3"), "process python3 of systemd unit web.service of user 7");
}

#[test]
fn devices_of_the_kernel_and_the_container_runtime_are_named_as_such() {
    let mut world = Snapshot::healthy();
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    let link = interfaces.links[0].name.clone();
    for (kind, words) in [("vxlan", "VXLAN device"), ("geneve", "Geneve device"), ("wireguard", "WireGuard device")] {
        Arc::make_mut(seen(&mut world.kernel.interfaces)).links[0].kind = Some(kind.to_owned());
        assert_eq!(owner_name(&world, &Owner::Kernel { link: link.clone() }), format!("the kernel ({words} {link})"));
    }
    let name = |world: &Snapshot, command: &str| owner_name(world, &daemon(command, 1));
    for (runtime, command) in
        [("containerd://2.1.0", "containerd"), ("cri-o://1.34.0", "crio"), ("docker://28", "dockerd")]
    {
        let node = seen(&mut world.cluster.nodes).iter_mut().find(|node| node.name == "n1").expect("a node");
        Arc::make_mut(node).container_runtime = Some(runtime.to_owned());
        assert_eq!(name(&world, command), format!("process {command} (the container runtime)"));
        assert_eq!(name(&world, "containerd-shim"), "process containerd-shim");
    }
    assert_eq!(name(&world, "crio"), "process crio", "docker is the runtime");
    world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
    assert_eq!(name(&world, "dockerd"), "process dockerd", "it is not known");
}

type Change<'a> = &'a dyn Fn(&mut Snapshot);

#[test]
fn a_pod_is_gone_where_the_pods_are_newer_than_its_process_and_it_is_not_among_them() {
    const UID: &str = "0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f";
    let mut world = Snapshot::healthy().listens_as("0.0.0.0:9", held("/kubepods/x", Some(UID), "nginx", 1));
    world.kernel.booted = Some(world.at);
    let seconds = |seconds: i64| jiff::Timestamp::from_second(world.at.as_second() + seconds).expect("a time");
    let [settled, sooner] = [SETTLED + 1, SETTLED].map(seconds);
    world.pods_at = Some(settled);
    let name = |world: &Snapshot| {
        owner_name(world, &world.kernel.listeners.seen().expect("listeners").last().expect("one").owner)
    };
    let gone = format!("a deleted pod (uid {UID})");
    assert_eq!(name(&world), gone);
    let with = |change: Change<'_>| {
        let mut world = world.clone();
        change(&mut world);
        name(&world)
    };
    let not_gone: [(&str, Change<'_>); 9] = [
        ("it may be newer", &|it| it.pods_at = Some(sooner)),
        ("files are as old as they are", &|it| it.pods_at = None),
        ("when it started is not known", &|it| it.kernel.booted = None),
        ("Pods were not read", &|it| it.cluster.pods = gap(Source::Pods, Why::NotPermitted)),
        ("something was not used", &|it| it.cluster.rejected.push(Gap::new(Source::Pods, Why::Malformed, ""))),
        ("Nodes were not read", &|it| it.cluster.nodes = gap(Source::Nodes, Why::Unreachable)),
        ("the Pods may be another node's", &|it| {
            Arc::make_mut(seen(&mut it.kernel.interfaces)).addresses.retain(|it| it.ip.to_string() != PRIMARY[0]);
            let node = seen(&mut it.cluster.nodes).iter_mut().find(|node| node.name == "n1").expect("a node");
            Arc::make_mut(node).addresses.truncate(1);
        }),
        ("addresses were not read", &|it| it.kernel.interfaces = gap(Source::Addresses, Why::Torn)),
        ("its process is not known", &|it| {
            let Owner::Held(holder) = &mut seen(&mut it.kernel.listeners).last_mut().expect("one").owner else {
                return;
            };
            holder.process = gap(Source::Processes, Why::NotPermitted);
        }),
    ];
    for (why, change) in not_gone {
        assert_ne!(with(change), gone, "{why}");
    }
    let is_there = |uid: Option<&str>, hash: Option<&str>| {
        let [uid, hash] = [uid, hash].map(|it| it.map(str::to_owned));
        let world = world.clone().pod("web", |pod| (pod.uid, pod.config_hash) = (uid.clone(), hash.clone()));
        name(&world)
    };
    assert_eq!(is_there(Some(UID), None), "pod default/web");
    assert_eq!(is_there(Some("another"), Some(UID)), "pod default/web");
    let of_hash = held("/kubepods/x", Some("3a1d0b2c4e5f60718293a4b5c6d7e8f9"), "nginx", 1);
    assert_eq!(owner_name(&world, &of_hash), "process nginx", "a static pod may have no Pod");
}
