//! Remedies on sockets and Services.

use crate::{
    dataplane::{ExternalAddress, Field, UNNAMED, owner_name},
    facts::{Protocol, Service, Snapshot, Socket, text::shell_word},
};

/// What to do with whoever holds a socket; where nobody could name it, how to find out comes first.
pub(super) fn move_off(snapshot: &Snapshot, socket: &Socket) -> String {
    let port = format!("{}/{}", socket.local_port, socket.protocol);
    match owner_name(snapshot, &socket.owner) {
        name if name == UNNAMED => {
            let search = who_holds(socket.protocol, socket.local_port);
            format!("find who holds port {port} with `{search}` as root on the node, and move it off")
        }
        name => format!("move {name} off port {port}"),
    }
}

/// The command that names the processes with listeners on a port, to root on the node.
pub(super) fn who_holds(protocol: Protocol, port: u16) -> String {
    let table = match protocol {
        Protocol::Tcp => 't',
        Protocol::Udp => 'u',
        Protocol::Sctp => 'S',
    };
    format!("ss -H{table}lnp 'sport = :{port}'")
}

/// A command on a Service, for a remedy.
pub(super) fn kubectl(verb: &str, service: &Service) -> String {
    format!("kubectl -n {} {verb} service {}", shell_word(&service.namespace), shell_word(&service.name))
}

/// What takes an external address back from its Service.
pub(super) fn release(address: &ExternalAddress<'_>) -> String {
    let Service { namespace, name, .. } = address.service;
    match address.field {
        Field::ExternalIps(index) => format!(
            "{} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/externalIPs/{index}\"}}]'",
            kubectl("patch", address.service)
        ),
        Field::LoadBalancer => format!(
            "give Service {namespace}/{name} a load balancer address that is no Node's, or have its controller set `ipMode: Proxy` in status.loadBalancer.ingress"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{
        Owner, Source, Why,
        healthy::{gap, seen},
    };

    #[test]
    fn a_holder_that_could_not_be_named_is_looked_for_before_it_is_moved() {
        let world = || Snapshot::healthy();
        for (world, command) in
            [(world().listens("0.0.0.0:30080"), "ss -Htlnp"), (world().listens_udp("0.0.0.0:30080"), "ss -Hulnp")]
        {
            let last =
                |world: &Snapshot| world.kernel.listeners.seen().expect("listeners").last().expect("one").clone();
            assert!(
                move_off(&world, &last(&world)).starts_with("move process "),
                "{}",
                move_off(&world, &last(&world))
            );
            let blind = {
                let mut world = world.clone();
                let Owner::Held(holder) = &mut seen(&mut world.kernel.listeners).last_mut().expect("one").owner else {
                    panic!("held")
                };
                holder.process = gap(Source::Processes, Why::NotPermitted);
                holder.cgroup = gap(Source::Cgroups, Why::NotPermitted);
                world
            };
            let told = move_off(&blind, &last(&blind));
            assert!(told.contains(&format!("`{command} 'sport = :30080'`")), "{told}");
        }
    }
}
