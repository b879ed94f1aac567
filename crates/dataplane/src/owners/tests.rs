use super::*;
use portreeve_facts::{
    Cgroup, Holder, Source, Why,
    healthy::{daemon, gap, seen},
};

/// The same socket, with another holder.
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
    assert_eq!(unnamed(daemon("sshd", 7), false), "a process of /system.slice/sshd.service");
    assert_eq!(unnamed(daemon("sshd", 7), true), "a process that could not be named");
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
