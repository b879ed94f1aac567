//! Finds the fields of an object that claim a port or an address, with their places. Also finds the fields that the API
//! server refuses (Kubernetes 1.36 `pkg/apis/core/validation/validation.go`).

use std::collections::{HashMap, HashSet};

use crate::{
    objects::{ContainerPortSpec, Ip, Metadata, OptionalPort, PodSpec, Port, PortProtocol, Service, probed_ports},
    tree::Node,
};
use portreeve_facts::{
    ACCEPT, Accepts, Claim, Claimed, FileName, Place, Protocol, Refusal, Refused, WorkloadKind, text,
};

/// The longest name of a rule in the annotation [`ACCEPT`], in bytes.
const RULE: usize = 64;
const MOST_RULES: usize = 64;

#[derive(Default)]
pub(super) struct Fields {
    pub(super) claims: Vec<Claim>,
    pub(super) refused: Vec<Refused>,
}

impl Fields {
    fn add(&mut self, claim: Claim, refusal: Option<Refusal>) {
        match refusal {
            Some(why) => self.refused.push(Refused { claim, why }),
            None => self.claims.push(claim),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub(super) file: &'a FileName,
    pub(super) first: u64,
    pub(super) template: Option<&'a FileName>,
}

impl Lines<'_> {
    pub(super) fn place(&self, node: &Node) -> Place {
        let (line, column) = node.at;
        let line = self.first + line.saturating_sub(1);
        Place { file: self.file.clone(), line, column, width: node.width, template: self.template.cloned() }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Written<'a> {
    pub(super) object: &'a Node,
    pub(super) lines: &'a Lines<'a>,
}

impl Written<'_> {
    /// The place of the field. If the field is absent, this is the place of the nearest parent in `path` that is
    /// present.
    pub(super) fn place(self, path: &str) -> Place {
        self.lines.place(self.object.at_field(path))
    }

    fn claim(self, path: String, what: Claimed) -> Claim {
        Claim { place: self.place(&path), path, what, of_port: None }
    }
}

pub(super) fn accepts(metadata: &Metadata, written: Written<'_>) -> Option<Accepts> {
    let names = metadata.annotations.as_ref()?.accept.as_deref()?.split(',').map(str::trim);
    let rules = names.filter(|name| !name.is_empty()).take(MOST_RULES).map(|name| text::clean(name, RULE)).collect();
    Some(Accepts { rules, place: written.place(&format!("metadata.annotations.{ACCEPT}")) })
}

pub(super) fn of_service(service: &Service, written: Written<'_>) -> Fields {
    let mut fields = Fields::default();
    let Some(spec) = &service.spec else { return fields };
    let refusal = match spec.kind.as_deref() {
        None | Some("ClusterIP") => Some(Refusal::NodePort),
        Some(_) => None,
    };
    // The API server accepts the nodePort of an ExternalName, but does not use it (pkg/apis/core/validation).
    let uses_node_ports = spec.kind.as_deref() != Some("ExternalName");
    let (mut ports, mut names) = (HashSet::new(), HashSet::new());
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        let path = |field| format!("spec.ports[{index}].{field}");
        let (protocol, name) = (protocol(port.protocol.as_ref()), port.name.as_deref().unwrap_or_default());
        if let Some(Port(number)) = port.port {
            let what = Claimed::ServicePort(number, protocol);
            if !ports.insert((number, protocol)) {
                fields.add(written.claim(path("port"), what), Some(Refusal::PortTwice));
            }
            if !name.is_empty() && !names.insert(name) {
                fields.add(written.claim(path("name"), what), Some(Refusal::NameTwice));
            }
        }
        if let Some(OptionalPort(Some(node_port))) = port.node_port
            && uses_node_ports
        {
            let claim = written.claim(path("nodePort"), Claimed::NodePort(node_port, protocol));
            let of_port = port.port.map(|Port(number)| (name.to_owned(), number));
            fields.add(Claim { of_port, ..claim }, refusal);
        }
    }
    if let Some(OptionalPort(Some(number))) = spec.health_check_node_port {
        let is_requested =
            (spec.kind.as_deref(), spec.external_traffic_policy.as_deref()) == (Some("LoadBalancer"), Some("Local"));
        let claim = written.claim("spec.healthCheckNodePort".to_owned(), Claimed::HealthCheckNodePort(number));
        fields.add(claim, (!is_requested).then_some(Refusal::HealthCheck));
    }
    for (index, Ip(ip)) in spec.external_ips.iter().flatten().enumerate() {
        fields.add(written.claim(format!("spec.externalIPs[{index}]"), Claimed::ExternalIp(*ip)), None);
    }
    fields
}

pub(super) fn of_pods(kind: WorkloadKind, pods: &PodSpec, written: Written<'_>) -> Fields {
    let mut fields = Fields::default();
    let host_network = pods.host_network == Some(true);
    let mut probed = Vec::new();
    for (list, containers) in [("containers", &pods.containers), ("initContainers", &pods.init_containers)] {
        // Containers run at the same time, so two containers must not declare the same port. Init containers that end
        // do not run at the same time.
        let mut together = HashMap::new();
        for (index, container) in containers.iter().flatten().enumerate() {
            if list == "initContainers" {
                // An init container with `restartPolicy: Always` runs beside the containers, so its ports count too.
                if container.restart_policy.as_deref() != Some("Always") {
                    continue;
                }
                together.clear();
            }
            for (port_index, port) in container.ports.iter().flatten().enumerate() {
                let Some((field, what)) = of_port(port, host_network) else { continue };
                let path = format!("{}.{list}[{index}].ports[{port_index}].{field}", kind.pod_spec());
                // The API server compares the texts of `hostIP`, not the addresses (pkg/apis/core/validation,
                // `AccumulateUniqueHostPorts`).
                let host_ip = port.host_ip.as_deref().unwrap_or_default();
                let is_compared = field == "hostPort" || kind == WorkloadKind::Pod;
                let refusal = not_the_port(port, host_network && list == "containers").or_else(|| {
                    let known = together.insert((what.port(), host_ip), is_compared)?;
                    Some(if known && is_compared { Refusal::Twice } else { Refusal::TwiceInPods })
                });
                fields.add(written.claim(path, what), refusal);
            }
            for ([probe, how], port) in probed_ports(container).filter(|_| host_network) {
                let path = format!("{}.{list}[{index}].{probe}.{how}.port", kind.pod_spec());
                probed.push(written.claim(path, Claimed::HostNetworkPort(port.port, port.protocol)));
            }
        }
    }
    // A probed port is left out if a container declares the port, or if an earlier probe has the port.
    let mut known: HashSet<_> = fields.claims.iter().map(|claim| claim.what.port()).collect();
    fields.claims.extend(probed.into_iter().filter(|claim| known.insert(claim.what.port())));
    fields
}

fn of_port(port: &ContainerPortSpec, host_network: bool) -> Option<(&'static str, Claimed)> {
    let (protocol, host_ip) = (protocol(port.protocol.as_ref()), port.host_ip());
    match (port.host_port, port.container_port) {
        (Some(OptionalPort(Some(number))), _) => Some(("hostPort", Claimed::HostPort(number, protocol, host_ip))),
        (_, Some(Port(number))) if host_network => Some(("containerPort", Claimed::HostNetworkPort(number, protocol))),
        _ => None,
    }
}

fn not_the_port(port: &ContainerPortSpec, host_network: bool) -> Option<Refusal> {
    let OptionalPort(host_port) = port.host_port.filter(|_| host_network)?;
    let Port(container_port) = port.container_port?;
    (host_port? != container_port).then_some(Refusal::NotThePort(container_port))
}

fn protocol(protocol: Option<&PortProtocol>) -> Protocol {
    protocol.map_or(Protocol::Tcp, |PortProtocol(protocol)| *protocol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        manifest_files::tree,
        objects::{Workload, decode},
    };

    #[test]
    fn a_service_with_an_empty_type_gets_no_node_port() {
        let refusal = |kind: &str| {
            let text = format!("{{spec: {{type: {kind:?}, ports: [{{port: 80, nodePort: 30080}}]}}}}");
            let object = tree(text.as_bytes()).expect("YAML");
            let lines = Lines { file: &FileName::new("x.yaml".to_owned(), "x.yaml".into()), first: 1, template: None };
            let service = decode(&object).expect("a Service");
            of_service(&service, Written { object: &object, lines: &lines }).refused.first().map(|it| it.why)
        };
        assert_eq!(refusal(""), Some(Refusal::NodePort));
        assert_eq!(refusal("NodePort"), None);
    }

    /// If a path did not lead to its field, the claim would have the place of a parent, without an error.
    #[test]
    fn each_path_leads_to_its_field_and_not_to_a_parent() {
        let file = FileName::new("x.yaml".to_owned(), "x.yaml".into());
        let lines = Lines { file: &file, first: 1, template: None };
        let fields_at = |object: &Node, fields: &Fields| -> Vec<String> {
            let claims = fields.claims.iter().chain(fields.refused.iter().map(|refused| &refused.claim));
            claims.map(|claim| format!("{} {}", claim.path, object.at_field(&claim.path).value.in_words())).collect()
        };

        let ports = "[{name: web, port: 80, nodePort: 30080}, {name: web, port: 80}]";
        let others = "healthCheckNodePort: 32000, externalIPs: [203.0.113.7]";
        let document = format!("{{spec: {{type: NodePort, ports: {ports}, {others}}}}}");
        let object = tree(document.as_bytes()).expect("YAML");
        let service: Service = decode(&object).expect("a Service");
        let fields = of_service(&service, Written { object: &object, lines: &lines });
        assert_eq!(
            fields_at(&object, &fields),
            [
                "spec.ports[0].nodePort 30080",
                "spec.externalIPs[0] \"203.0.113.7\"",
                "spec.ports[1].port 80",
                "spec.ports[1].name \"web\"",
                "spec.healthCheckNodePort 32000",
            ]
        );

        let ports = "[{hostPort: 1001, containerPort: 1001}, {containerPort: 1002}]";
        let http = "startupProbe: {httpGet: {port: 1003}}";
        let others = "livenessProbe: {tcpSocket: {port: 1004}}, readinessProbe: {grpc: {port: 1005}}";
        let container = format!("{{ports: {ports}, {http}, {others}}}");
        let beside = "{restartPolicy: Always, ports: [{containerPort: 1006}], livenessProbe: {httpGet: {port: 1007}}}";
        let spec = format!("{{hostNetwork: true, containers: [{container}], initContainers: [{beside}]}}");
        for kind in WorkloadKind::ALL {
            let document = kind.pod_spec().rsplit('.').fold(spec.clone(), |inner, key| format!("{{{key}: {inner}}}"));
            let object = tree(document.as_bytes()).expect("YAML");
            let workload = Workload::read(kind, &object).expect("a workload");
            let fields = of_pods(kind, workload.pods().expect("pods"), Written { object: &object, lines: &lines });
            let expected = [
                "containers[0].ports[0].hostPort 1001",
                "containers[0].ports[1].containerPort 1002",
                "initContainers[0].ports[0].containerPort 1006",
                "containers[0].startupProbe.httpGet.port 1003",
                "containers[0].livenessProbe.tcpSocket.port 1004",
                "containers[0].readinessProbe.grpc.port 1005",
                "initContainers[0].livenessProbe.httpGet.port 1007",
            ];
            assert_eq!(fields_at(&object, &fields), expected.map(|field| format!("{}.{field}", kind.pod_spec())));
        }
    }
}
