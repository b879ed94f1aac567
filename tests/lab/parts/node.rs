//! The node `n1`: the calling thread's network namespace, alone or with links to a client and to pods.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
};

use super::{
    commands::run,
    namespace::{Namespace, enter, ip, sysctl},
    talk::{Answer, Server},
};

/// The addresses of the Node object, one of each family.
pub const PRIMARY: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// The addresses of a [`Wired`] node that other hosts can reach: two addresses of each family, and the addresses on the
/// links to pods.
pub const ADDRESSES: [&str; 8] =
    [PRIMARY[0], PRIMARY[1], "192.0.2.2", "2001:db8::2", "10.244.0.1", "fd00:244::1", "10.244.1.1", "fd00:244:0:1::1"];

/// An address of a [`Wired`] node that can be reached only over the link to the client.
pub const LINK_LOCAL: &str = "fe80::1";

#[track_caller]
pub fn enter_alone() {
    enter();
    let link = ["link add eth0 type veth peer name wire", "link set wire up", "link set eth0 up"];
    ip(&link.map(str::to_owned));
    ip(&addresses("eth0", [PRIMARY[0], "192.0.2.2", PRIMARY[1], "2001:db8::2"]));
}

/// A node with all its clients. The network namespace of the calling thread is the node.
///
/// ```text
/// client --- eth0 node pod0 --- pod      asks
///                      pod1 --- backend  answers on port 8080 for every Service
/// ```
pub struct Wired {
    _server: Server,
    pub client: Namespace,
    /// A pod that serves no Service.
    pub pod: Namespace,
    /// The pod that serves all Services. The pod has the addresses [`Self::HERE`] and [`Self::ELSEWHERE`].
    pub backend: Namespace,
}

impl Wired {
    /// The backend's addresses that stand for endpoints on this node, IPv4 and IPv6.
    pub const HERE: [&str; 2] = ["10.244.1.5", "fd00:244:0:1::5"];
    /// The backend's addresses that stand for endpoints on another node.
    pub const ELSEWHERE: [&str; 2] = ["10.244.1.6", "fd00:244:0:1::6"];
    pub const PORT: u16 = 8080;
    pub const ANOTHER: [&str; 2] = ["10.244.2.5", "fd00:244:0:2::5"];

    #[track_caller]
    pub fn enter() -> Self {
        enter();
        let [client, pod, backend] = [(); 3].map(|()| Namespace::new());
        sysctl("net.ipv4.ip_forward", "1");
        sysctl("net.ipv6.conf.all.forwarding", "1");
        // By default, the kernel limits the rate of ICMP errors. Without an ICMP error, a refused connection would time
        // out.
        sysctl("net.ipv4.icmp_ratelimit", "0");
        sysctl("net.ipv4.icmp_ratemask", "0");
        sysctl("net.ipv6.icmp.ratelimit", "0");
        // The mask limits only the error "packet too big", which this network does not send.
        sysctl("net.ipv6.icmp.ratemask", "2");
        connect(&client, "eth0", &["192.0.2.100", "2001:db8::100"], PRIMARY);
        connect(&pod, "pod0", &["10.244.0.5", "fd00:244::5"], ["10.244.0.1", "fd00:244::1"]);
        connect(&backend, "pod1", &[Self::HERE, Self::ELSEWHERE].concat(), ["10.244.1.1", "fd00:244:0:1::1"]);
        ip(&addresses("eth0", ["192.0.2.2", "2001:db8::2", LINK_LOCAL]));
        client.run(|| ip(&addresses("eth0", ["fe80::2"])));
        ip(&default_routes(["192.0.2.100", "2001:db8::100"]));
        // Drops each answer that goes directly to the client from an address in `Self::ELSEWHERE`. The client would
        // discard an answer with a pod's address.
        backend.run(|| {
            for (family, from, to) in
                [("-4", Self::ELSEWHERE[0], "192.0.2.100"), ("-6", Self::ELSEWHERE[1], "2001:db8::100")]
            {
                let rule = [family, "rule", "add", "from", from, "to", to, "blackhole"];
                run(Command::new("ip").args(rule)).expect("a rule");
            }
        });
        let everywhere = SocketAddr::new(IpAddr::from([0; 16]), Self::PORT);
        let server = backend.run(move || Server::on(everywhere, Answer::Pod));
        Self { _server: server, client, pod, backend }
    }

    /// When the value is dropped, the kernel removes the pod's link.
    #[track_caller]
    pub fn another() -> Namespace {
        let pod = Namespace::new();
        connect(&pod, "pod2", &Self::ANOTHER, ["10.244.2.1", "fd00:244:0:2::1"]);
        pod
    }
}

/// The neighbour entries are permanent, because neighbour discovery needs a link-local address, and most links of the
/// node have none.
fn connect(far: &Namespace, link: &str, theirs: &[&str], ours: [&str; 2]) {
    let hardware = "02:00:00:00:00:01";
    let mut commands = vec![
        format!("link add {link} type veth peer name eth0 address {hardware} netns {}", far.path()),
        format!("link set {link} up"),
    ];
    commands.extend(addresses(link, ours));
    commands.extend(theirs.iter().map(|it| format!("neighbour add {it} lladdr {hardware} dev {link} nud permanent")));
    ip(&commands);
    let theirs = addresses("eth0", theirs.iter().copied());
    let routes = default_routes(ours);
    far.run(move || {
        ip(&["link set eth0 up".to_owned()]);
        ip(&theirs);
        ip(&routes);
    });
}

fn addresses<'a>(link: &str, addresses: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let rest = |address: &str| if address.contains(':') { "/64 nodad" } else { "/24" };
    addresses.into_iter().map(|it| format!("address add {it}{} dev {link}", rest(it))).collect()
}

fn default_routes(gateways: [&str; 2]) -> Vec<String> {
    gateways.map(|it| format!("route add default via {it}")).to_vec()
}
