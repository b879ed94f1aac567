//! Reads the node: its sockets, settings, addresses and proxy, each fact with its own gap.
//!
//! Never: judges, fails as a whole, or writes to the host.

#![allow(clippy::disallowed_methods, reason = "reads the node's files, and asks its kernel and its proxy")]

mod health;
mod http;
mod ip_vs;
mod netfilter;
mod netlink;
mod privileges;
mod proc_net;
mod proxy;
mod record;
mod resolv;
mod root;
mod route;
mod sock_diag;
mod sockets;
mod sockstat;
mod sysctl;

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use self::{
    proxy::Answers,
    root::Root,
    sockets::{Listeners, Sockets},
};
use crate::facts::{Gap, HealthCheckAnswer, Interfaces, KernelFacts, Reading, Source, Wanted, Why, text};

/// Where kube-proxy answers unless `metricsBindAddress` says otherwise; which of the two follows `bindAddress`.
const PROXY_PLACES: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249),
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 10249),
];

/// A host to read: the live one, or a recorded tree of files.
#[derive(Clone, Debug)]
pub struct Host {
    root: Root,
    proxy_places: Vec<SocketAddr>,
}

impl Host {
    /// The host whose `/` is at `root`. It is live when that is `/` or a mount of the running host's, known by its
    /// boot id: then the kernel and the proxy are asked. Of a recorded tree only the files are read, and what they
    /// cannot tell is a gap.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: Root::at(root.into()), proxy_places: PROXY_PLACES.to_vec() }
    }

    /// The same host, with kube-proxy looked for at these places, in this order, instead of port 10249 of both
    /// loopback addresses. They must be addresses of this host.
    #[must_use]
    pub fn with_proxy_places(self, proxy_places: Vec<SocketAddr>) -> Self {
        Self { proxy_places, ..self }
    }

    /// Whether the running kernel can be asked about it.
    pub fn is_live(&self) -> bool {
        self.root.is_live()
    }

    /// Reads every fact once, in the network namespace of the calling thread. It blocks, for some seconds where a
    /// proxy hangs, and must not be called on an async runtime: give it a thread.
    ///
    /// Sockets come before the proxy is asked, so that our own connections are not among them.
    pub fn read(&self, wanted: &Wanted) -> KernelFacts {
        let interfaces = self.ask(Source::Addresses, route::read);
        let sockets = self.sockets();
        let (listeners, socket_source) = match sockets.listeners() {
            Ok(Listeners { sockets, told_by }) => (Reading::Seen(sockets), told_by),
            Err(gap) => (Reading::Gap(gap), String::new()),
        };
        let clients = listeners.get().and_then(|listeners| sockets.clients(&wanted.client_ports, listeners));
        let later = |source| Gap::new(source, Why::NotYet, "");
        let ip_vs = ip_vs::servers(&self.root).into();
        let ip_vs_connections = ip_vs::connections(&self.root, &wanted.client_ports).into();
        let sysctls = sysctl::read(&self.root);
        let sockstat = sockstat::read(&self.root).into();
        let netfilter = self.ask(Source::Netfilter, || netfilter::read(&self.root));
        let (answers, health_checks) = self.ask_proxies(wanted, interfaces.seen());
        KernelFacts {
            hostname: self.name("hostname"),
            release: self.name("osrelease"),
            capabilities: if self.is_live() { privileges::read() } else { Vec::new() },
            proxy: proxy::facts(answers, &listeners),
            listeners,
            socket_source,
            clients: clients.into(),
            ephemeral: Reading::Gap(later(Source::EphemeralUse)),
            pod_namespaces: Reading::Gap(later(Source::PodNamespaces)),
            sysctls,
            sockstat,
            interfaces,
            nameservers: resolv::read(&self.root).into(),
            ip_vs,
            ip_vs_connections,
            netfilter,
            health_checks,
        }
    }

    /// What only a running kernel can tell.
    fn ask<T>(&self, source: Source, reader: impl FnOnce() -> Result<T, Gap>) -> Reading<T> {
        if self.is_live() { reader().into() } else { Reading::Gap(root::recorded(source)) }
    }

    fn sockets(&self) -> Sockets {
        if self.is_live() {
            Sockets::live(&self.root.path().join("proc"))
        } else {
            Sockets::recorded(&self.root.path().join("proc/net"))
        }
    }

    fn ask_proxies(
        &self,
        wanted: &Wanted,
        interfaces: Option<&Interfaces>,
    ) -> (Answers, Reading<Vec<HealthCheckAnswer>>) {
        let asked = if self.is_live() {
            let addresses = health::addresses(interfaces);
            http::run(async {
                tokio::join!(proxy::read(&self.proxy_places), health::read(&wanted.health_check_ports, &addresses))
            })
        } else {
            Err(root::recorded(Source::ProxyMode))
        };
        match asked {
            Ok((answers, health_checks)) => (answers, Reading::Seen(health_checks)),
            Err(gap) => (Answers::none(&gap), Reading::Gap(Gap { source: Source::HealthChecks, ..gap })),
        }
    }

    /// A one-line file below `/proc/sys/kernel`; `unknown` where it cannot be read.
    fn name(&self, file: &str) -> String {
        let path = self.root.path().join("proc/sys/kernel").join(file);
        root::read_text(Source::Sysctls, &path, 1024)
            .map_or_else(|_| "unknown".to_owned(), |line| text::clean(&line, text::NAME))
    }
}
