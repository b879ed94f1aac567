//! A Service and its EndpointSlices for tests.

use super::{
    super::{Endpoint, EndpointPort, EndpointSlice, Family, ForCilium, Protocol, Service, ServiceKind, ServicePort},
    ip,
};

/// Builds a Service and its EndpointSlices.
pub struct World {
    /// The Service.
    pub service: Service,
    /// The EndpointSlices, one for each family.
    pub slices: Vec<EndpointSlice>,
}

impl World {
    pub(super) fn new(name: &str) -> Self {
        let service = Service {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: Some(format!("uid-{name}").into()),
            kind: ServiceKind::NodePort,
            cluster_ips: vec![ip("10.96.0.10"), ip("fd00:96::10")],
            families: &Family::BOTH,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: &[],
            external_local: false,
            internal_local: false,
            health_check_node_port: None,
            health_check_kept: false,
            proxy_name: None,
            for_cilium: ForCilium::default(),
            announced: None,
            ports: vec![ServicePort {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 80,
                target: Some(8080),
                node_port: None,
                fixed: Some(false),
            }],
        };
        let slices = [(Family::V4, "10.244.0.5"), (Family::V6, "fd00:244::5")]
            .map(|(family, address)| EndpointSlice {
                namespace: "default".to_owned(),
                service: name.to_owned(),
                family,
                ports: vec![EndpointPort { name: String::new(), protocol: Protocol::Tcp, port: Some(8080) }],
                endpoints: vec![Endpoint {
                    addresses: vec![ip(address)],
                    ready: true,
                    serving: true,
                    terminating: false,
                    node: Some("n1".to_owned()),
                }],
            })
            .to_vec();
        Self { service, slices }
    }

    /// Sets the first port's nodePort.
    pub fn node_port(mut self, port: u16) -> Self {
        self.service.ports[0].node_port = Some(port);
        self
    }

    /// Sets the protocol of every port in the Service and in the EndpointSlices.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.service.ports[0].protocol = protocol;
        self.each_slice(|slice| slice.ports[0].protocol = protocol)
    }

    /// Makes a Service of type ClusterIP with this external IP and the Service port 6666.
    pub fn external_ip(mut self, address: &str) -> Self {
        self.service.kind = ServiceKind::ClusterIp;
        self.service.external_ips.push(ip(address));
        self.service.ports[0].port = 6666;
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    pub fn local(mut self) -> Self {
        self.service.external_local = true;
        self
    }

    /// Sets `internalTrafficPolicy: Local`.
    pub fn local_inside(mut self) -> Self {
        self.service.internal_local = true;
        self
    }

    /// Removes every endpoint.
    pub fn without_endpoints(self) -> Self {
        self.each_slice(|slice| slice.endpoints.clear())
    }

    /// Moves every endpoint to the second node.
    pub fn elsewhere(self) -> Self {
        self.each_slice(|slice| slice.endpoints.iter_mut().for_each(|it| it.node = Some("n2".to_owned())))
    }

    /// Changes the Service itself.
    pub fn with(mut self, change: impl FnOnce(&mut Service)) -> Self {
        change(&mut self.service);
        self
    }

    /// Changes each slice.
    pub fn each_slice(mut self, change: impl FnMut(&mut EndpointSlice)) -> Self {
        self.slices.iter_mut().for_each(change);
        self
    }
}
