//! The remedies of all rules. Only this file writes commands, so one test can run each command in a shell. All text
//! that a tenant can write is quoted.

use std::cmp::Reverse;

use super::{
    pods::{PortOf, is_static, workload},
    wording::number_field,
};
use crate::findings::{Effect, Remedy, ServiceRef, Step};
use portreeve_dataplane::{ExternalAddress, Field, UNNAMED, Unit, gone_pod, owner_name, unit_of};
use portreeve_facts::{
    Address, Controller, Mode, Owner, Pod, PortRange, PortSet, Protocol, Service, ServiceKind, ServicePort, Snapshot,
    Socket, Unread, text::shell_word,
};

/// The last port of Linux' default ephemeral port range. Antrea's NodePortLocal uses ports above this port.
pub(super) const LAST_BY_DEFAULT: u16 = PortRange::DEFAULT_EPHEMERAL.last;
/// The default range of Antrea's NodePortLocal.
const NODE_PORT_LOCAL: PortRange = PortRange { first: 61000, last: 62000 };

/// `free` is an argument, because a search for a free number reads all Services. If the Service got another nodePort
/// after the scan, the patch changes nothing.
pub(super) fn move_service(free: Option<u16>, service: &Service, port: &ServicePort) -> Remedy {
    let Service { namespace, name, .. } = service;
    let lasting = format!("give Service {namespace}/{name} another nodePort");
    let index = service.ports.iter().position(|it| std::ptr::eq(it, port)).unwrap_or(0);
    match (free, port.node_port) {
        (Some(free), Some(number)) => {
            let path = |index: usize| format!("/spec/ports/{index}/nodePort");
            // If a TCP entry and a UDP entry have one nodePort and one port, both entries get the new number.
            // Otherwise, the API server refuses the patch.
            let is_same = |it: &ServicePort| (it.node_port, it.port) == (Some(number), port.port);
            let same = service.ports.iter().enumerate().filter(|(_, it)| is_same(it));
            let changes =
                same.map(|(index, _)| format!(r#"{{"op":"replace","path":"{}","value":{free}}}"#, path(index)));
            let (path, change) = (path(index), changes.collect::<Vec<_>>().join(","));
            let patch = Step::command(json_patch(service, &path, &number.to_string(), &change)).lasting(lasting);
            patch.with(Effect::MoveService(of(service), port.port, [number, free])).into()
        }
        _ => {
            let number = port.node_port.map(|number| format!(" {number}")).unwrap_or_default();
            Remedy::from(Step::command(kubectl("edit", service)).lasting(lasting))
                .then(Step::advice(format!("in the editor, replace nodePort{number} with a free number")))
        }
    }
}

/// If `port` is `None`, the Service gets another healthCheckNodePort. A Service that is only in a file cannot be
/// patched.
pub(super) fn another_number(free: Option<u16>, service: &Service, port: Option<&ServicePort>) -> Remedy {
    // Without the field, the API server keeps a healthCheckNodePort.
    let is_there = service.uid.is_some() || port.is_none() && service.health_check_kept;
    match (is_there, port) {
        (true, Some(port)) => move_service(free, service, port),
        (true, None) => choose_another_health_check_port(service),
        (false, _) => {
            let Service { namespace, name, .. } = service;
            let field = number_field(port);
            let chosen = match service.kind {
                // Without the field, the API server keeps the number of an existing Service.
                _ if service.has_accepted(port) => "",
                // With `allocateLoadBalancerNodePorts: false`, the API server chooses no nodePort.
                ServiceKind::LoadBalancer if port.is_some() => ", or remove the field",
                _ => ", or remove the field so that the API server chooses a number",
            };
            Step::advice(format!("give Service {namespace}/{name} another {field}{chosen}")).into()
        }
    }
}

pub(super) fn release(claim: &ExternalAddress<'_>) -> Step {
    release_to(
        claim,
        "a load balancer address that no Node has, or configure its controller to set `ipMode: Proxy` in status.loadBalancer.ingress",
    )
}

/// Removes an external IP from its Service. For any other address, the step is the advice `instead`: for example, only
/// a controller can remove the address of a load balancer.
pub(super) fn release_to(claim: &ExternalAddress<'_>, instead: &str) -> Step {
    let Service { namespace, name, .. } = claim.service;
    match claim.field {
        // A Service that is only in a file cannot be patched.
        Field::ExternalIps(_) if claim.service.uid.is_none() => Step::advice(format!(
            "give Service {namespace}/{name} an external IP that no other object has, or remove the external IP"
        )),
        Field::ExternalIps(index) => {
            let path = format!("/spec/externalIPs/{index}");
            let change = format!(r#"{{"op":"remove","path":"{path}"}}"#);
            Step::command(json_patch(claim.service, &path, &format!("\"{}\"", claim.ip), &change))
                .with(Effect::Release(of(claim.service), claim.ip))
        }
        Field::LoadBalancer | Field::ClusterIps => Step::advice(format!("give Service {namespace}/{name} {instead}")),
    }
}

/// Removes claimed addresses, the last address of each Service first: a removal changes the index of all later
/// addresses in the list.
pub(super) fn release_all(mut claims: Vec<&ExternalAddress<'_>>) -> Vec<Step> {
    claims.sort_by_key(|claim| match claim.field {
        Field::ExternalIps(index) => (0, Reverse(index)),
        Field::LoadBalancer | Field::ClusterIps => (1, Reverse(0)),
    });
    let mut steps: Vec<Step> = claims.into_iter().map(release).collect();
    steps.dedup();
    steps
}

pub(super) fn keep_external_ips_out() -> Step {
    Step::advice("to refuse new external IPs, enable the admission plugin DenyServiceExternalIPs")
}

/// Makes the API server choose another healthCheckNodePort. After the first command, and until the second command, pods
/// see the address of a node as the client's address.
pub(super) fn choose_another_health_check_port(service: &Service) -> Remedy {
    let remedy = Remedy::from(set_traffic_policy(service, "Cluster")).then(set_traffic_policy(service, "Local"));
    // The API server refuses a manifest that still has the old healthCheckNodePort.
    let written = "if the manifest has healthCheckNodePort, remove the field or write the new number";
    if service.health_check_kept { remedy.then(Step::advice(written)) } else { remedy }
}

/// With the policy `Cluster`, all nodes answer, and pods see the address of a node as the client's address.
pub(super) fn set_traffic_policy(service: &Service, policy: &str) -> Step {
    let change = format!(r#"{{"spec":{{"externalTrafficPolicy":"{policy}"}}}}"#);
    Step::command(format!("{} -p '{change}'", kubectl("patch", service)))
        .with(Effect::AnswerWithPodsOnly(of(service), policy == "Local"))
}

pub(super) fn health_check_events(service: &Service) -> Step {
    let namespace = option_n(&service.namespace);
    Step::command(format!("kubectl {namespace} get events --field-selector reason=FailedToStartServiceHealthcheck"))
}

/// Shows the pods of `kube-system` on a node. The label of kube-proxy's pods differs between platforms.
pub(super) fn proxy_pods(node: &str) -> Step {
    Step::command(format!("kubectl -n kube-system get pods --field-selector spec.nodeName={}", shell_word(node)))
}

pub(super) fn endpoints_of(service: &Service) -> Step {
    let (namespace, name) = (option_n(&service.namespace), shell_word(&service.name));
    Step::command(format!("kubectl {namespace} get endpointslices -l kubernetes.io/service-name={name}"))
}

/// The prefixes of units that remedies do not stop. These units serve the cluster, remote access, name resolution, the
/// clock or the disks.
const KEPT: &str = "kube containerd cri docker k3s k0s rke2 snap. etcd ssh systemd- NetworkManager user@ dnsmasq chrony ntp rpc nfs \
     iscsi open-iscsi multipath ceph gluster frr bird keepalived wg-quick named unbound";

/// If the owner's name is not known, the first command finds the owner.
pub(super) fn move_off(snapshot: &Snapshot, socket: &Socket) -> Remedy {
    let port = format!("{}/{}", socket.local_port, socket.protocol);
    let name = owner_name(snapshot, &socket.owner);
    if name == UNNAMED {
        let search = who_holds(socket.protocol, socket.local_port);
        let lasting = format!(
            "find the process on port {port} with `{}` as root on the node, and move it to another port",
            search.text
        );
        return Remedy::from(search.lasting(lasting)).then(Step::advice(format!(
            "move the process that the command names off port {port}; only root on the node sees the name"
        )));
    }
    if let Some(uid) = gone_pod(snapshot, &socket.owner) {
        return end_gone(uid, &port);
    }
    let unit = unit_of(&socket.owner);
    if let Some(unit) = unit.filter(|unit| unit.is_init()) {
        return disable_unnamed(unit, &port);
    }
    Step::advice(match &socket.owner {
        Owner::Kernel { link } if link.is_empty() => {
            let example = match socket.protocol {
                Protocol::Udp => wireguard(snapshot)
                    .unwrap_or_else(|| "WireGuard, or a tunnel in another network namespace".to_owned()),
                Protocol::Tcp | Protocol::Sctp => "an NFS server".to_owned(),
            };
            format!("the kernel opened port {port} for a program: find this program, such as {example}, and give it another port")
        }
        Owner::Kernel { link } => format!("give tunnel {link} another port than {port}, in its configuration"),
        _ => match unit.filter(|unit| !KEPT.split(' ').any(|begin| unit.name.starts_with(begin))) {
            Some(unit) if unit.is_socket() => format!(
                "if no program needs the socket unit, `{}`, and stop the service that it starts; otherwise give the unit another port than {port}",
                disable(unit)
            ),
            Some(unit) => format!("move {name} off port {port}, or, if it is not needed, `{}`", disable(unit)),
            None => format!("move {name} off port {port}"),
        },
    })
    .into()
}

pub(super) fn move_off_unless(snapshot: &Snapshot, socket: &Socket, right: &str) -> Remedy {
    let steps = move_off(snapshot, socket).steps;
    let [last] = &steps[..] else { return Remedy { steps } };
    Step::advice(format!("unless {right}, {}", last.text)).into()
}

fn disable(unit: Unit<'_>) -> String {
    format!("{} disable --now {}", systemctl(unit), shell_word(unit.name))
}

fn systemctl(unit: Unit<'_>) -> String {
    let of_user = unit.user.map(|user| format!(" --user --machine={user}@")).unwrap_or_default();
    format!("systemctl{of_user}")
}

/// Stops the socket unit whose socket systemd itself opened.
fn disable_unnamed(unit: Unit<'_>, port: &str) -> Remedy {
    let systemctl = systemctl(unit);
    let list = Step::command(format!("{systemctl} list-sockets"))
        .lasting(format!("find the socket unit of port {port} with `{systemctl} list-sockets`"));
    Remedy::from(list).then(Step::advice(format!(
        "if no program needs the socket unit with port {port}, disable it with `{systemctl} disable --now`"
    )))
}

/// Stops a process whose pod was deleted.
fn end_gone(uid: &str, port: &str) -> Remedy {
    let containers = Step::command(format!("crictl ps -a --label io.kubernetes.pod.uid={}", shell_word(uid)))
        .lasting("list with crictl the containers that remain of that pod");
    Remedy::from(containers).then(Step::advice(format!(
        "stop the container that the command lists; if it lists none, end the process that has port {port}"
    )))
}

/// The advice that a WireGuard link may have a UDP port. On the node, root can see the port of each link.
fn wireguard(snapshot: &Snapshot) -> Option<String> {
    let mut links = snapshot.kernel.interfaces.known(Unread::Adds)?.links.iter();
    let link = links.find(|link| link.kind.as_deref() == Some("wireguard"))?;
    Some(format!("WireGuard, whose port `wg show {} listen-port` prints", shell_word(&link.name)))
}

pub(super) fn some_addresses(of: PortOf<'_>) -> Step {
    Step::advice(format!("configure the server of {of} to listen only on the addresses of the node that clients use"))
}

/// Makes systemd-resolved release port 53. Without port 53, the stub of systemd-resolved answers no query. Programs of
/// the node use /etc/resolv.conf, and pods use the file that the kubelet names (systemd
/// src/resolve/resolved-resolv-conf.c).
pub(super) fn without_stub() -> Remedy {
    Remedy::from(Step::advice(
        "point /etc/resolv.conf, and `resolvConf` of the kubelet, at /run/systemd/resolve/resolv.conf: no server will answer at 127.0.0.53",
    ))
    .then(Step::advice("set `DNSStubListener=no` in resolved.conf, and restart systemd-resolved"))
}

pub(super) fn another_port(namespace: &str, name: &str, controller: Option<&Controller>) -> Step {
    let place = match controller.and_then(workload) {
        Some((kind, workload)) => format!("in {kind} {namespace}/{workload}"),
        None if is_static(controller) => "in its manifest on its node".to_owned(),
        None => "in the object that declares its containers".to_owned(),
    };
    Step::advice(format!("give pod {namespace}/{name} another port, {place}"))
}

/// The command that shows the owner of a port. The command needs root on the node.
pub(super) fn who_holds(protocol: Protocol, port: u16) -> Step {
    let table = match protocol {
        Protocol::Tcp => 't',
        Protocol::Udp => 'u',
        Protocol::Sctp => 'S',
    };
    Step::command(format!("ss -H{table}lnp 'sport = :{port}'"))
}

pub(super) fn choose_from(range: PortRange) -> Remedy {
    let PortRange { first, last } = range;
    let (value, file) = (format!("{first} {last}"), "zz-ephemeral-ports.conf");
    let remedy = set_sysctl("net.ipv4.ip_local_port_range", &value, file, Effect::ChooseFrom(range));
    match range.intersection(NODE_PORT_LOCAL) {
        None => remedy,
        Some(_) => remedy.then(Step::advice(format!(
            "if Antrea serves NodePortLocal, reserve its ports too: {NODE_PORT_LOCAL} unless configured otherwise"
        ))),
    }
}

/// The range and the reserved ports are safe sysctls: the kubelet accepts safe sysctls without a setting (kubernetes
/// pkg/kubelet/sysctl/safe_sysctls.go).
pub(super) fn choose_in_pod(pod: &Pod, range: Option<PortRange>, reserved: PortSet) -> Step {
    let widened =
        range.map(|PortRange { first, last }| format!("net.ipv4.ip_local_port_range to \"{first} {last}\", and "));
    let list = match reserved.is_empty() {
        true => "every port that its containers declare".to_owned(),
        false => format!("\"{reserved}\" and every other port that its containers declare"),
    };
    Step::advice(format!(
        "in spec.securityContext.sysctls of the pod, set {}net.ipv4.ip_local_reserved_ports (safe since Kubernetes 1.27) to {list}",
        widened.unwrap_or_default()
    ))
    .with(Effect::ChooseInPod((pod.namespace.clone(), pod.name.clone()), range, reserved))
}

pub(super) fn delete_address(address: &Address) -> Step {
    let Address { ip, prefix, link } = address;
    Step::command(format!("ip addr del {ip}/{prefix} dev {}", shell_word(link)))
        .with(Effect::DeleteAddress(*ip, link.to_string()))
}

/// Deletes a rule by its handle and its chain (`family table chain`).
pub(super) fn delete_rule(chain: &str, handle: u64) -> Step {
    let words: Vec<String> = chain.splitn(3, ' ').map(shell_word).collect();
    Step::command(format!("nft delete rule {} handle {handle}", words.join(" ")))
        .lasting("delete the rule with nft, by the chain and the handle of the evidence")
        .with(Effect::DeleteRule(chain.to_owned(), handle))
}

/// Removes the rules of all modes of kube-proxy.
///
/// The rules of Cilium stay. A running kube-proxy loses all its rules. The command clears all of IPVS (kubernetes
/// pkg/proxy/ipvs/proxier.go, `cleanupLeftovers`), including virtual servers of other programs (`of_others`).
pub(super) fn clean_up(present: Option<Mode>, of_others: bool) -> Remedy {
    const RUN: &str = "run kube-proxy --cleanup, and after an error run it again";
    let caution = of_others.then(|| {
        Step::advice(
            "find the programs that own the other virtual servers in `ipvsadm --list --numeric`: the next command clears all of IPVS",
        )
    });
    let restart =
        (present != Some(Mode::Cilium)).then_some("restart kube-proxy: the rules of its current mode were removed too");
    let lasting = match restart {
        Some(_) => {
            format!("{RUN}; then restart kube-proxy, because the cleanup also removes the rules of its current mode")
        }
        None => RUN.to_owned(),
    };
    let command = Step::command("kube-proxy --cleanup").lasting(lasting).with(Effect::CleanUp(None));
    let steps =
        caution.into_iter().chain([command, Step::advice("if the command ends with an error, run the command again")]);
    steps.chain(restart.map(Step::advice)).collect::<Vec<_>>().into()
}

/// Removes the leftovers of ipvs mode: all virtual servers, and the network interfaces in `links`.
pub(super) fn remove_ipvs(links: &[&str]) -> Remedy {
    let links: String = links.iter().map(|link| format!(" && ip link delete {link}")).collect();
    Remedy::from(Step::advice("make sure that no other program on this node uses IPVS"))
        .then(Step::command(format!("ipvsadm --clear{links}")).with(Effect::CleanUp(Some(Mode::Ipvs))))
}

pub(super) fn remove_nftables() -> Remedy {
    let delete = Step::command("nft delete table ip kube-proxy; nft delete table ip6 kube-proxy");
    delete.with(Effect::CleanUp(Some(Mode::Nftables))).into()
}

pub(super) fn untracked() -> Step {
    Step::command("iptables-save -t raw | grep -i notrack; nft list ruleset | grep notrack")
}

/// With the setting `allocateLoadBalancerNodePorts: false`, existing Services keep their nodePorts.
pub(super) fn give_node_ports_back() -> Remedy {
    let stop =
        "set `allocateLoadBalancerNodePorts: false` on LoadBalancer Services whose load balancer needs no nodePort";
    Remedy::from(Step::advice(stop)).then(Step::advice(
        "remove nodePort from every entry of their spec.ports: until then the Services keep their nodePorts",
    ))
}

/// In /etc/sysctl.d, the last file by name wins. Debian has a 99-sysctl.conf, to which Kubespray writes reserved ports.
/// The documentation of kubeadm has a k8s.conf.
pub(super) fn set_sysctl(name: &str, value: &str, file: &str, effect: Effect) -> Remedy {
    Remedy::from(Step::command(format!("sysctl -w {name}=\"{value}\"")).with(effect))
        .then(Step::command(format!("echo '{name} = {value}' > /etc/sysctl.d/{file}")))
}

/// If the value of `path` is no longer `present`, the patch changes nothing.
fn json_patch(service: &Service, path: &str, present: &str, change: &str) -> String {
    let test = format!(r#"{{"op":"test","path":"{path}","value":{present}}}"#);
    format!("{} --type=json -p '[{test},{change}]'", kubectl("patch", service))
}

fn of(Service { namespace, name, .. }: &Service) -> ServiceRef {
    (namespace.clone(), name.clone())
}

fn kubectl(verb: &str, service: &Service) -> String {
    // kubectl must not read a name that begins with `-` as an option.
    let separator = if service.name.starts_with('-') { '/' } else { ' ' };
    format!("kubectl {} {verb} service{separator}{}", option_n(&service.namespace), shell_word(&service.name))
}

fn option_n(namespace: &str) -> String {
    format!("-n{}{}", if namespace.starts_with('-') { '=' } else { ' ' }, shell_word(namespace))
}

#[cfg(test)]
mod tests;
