use super::*;
use crate::facts::{
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
