//! Slim objects of Kubernetes: one union of the fields that are used, of every kind that is read in lists and files.
//!
//! `kind` may come after everything else, so an object holds the fields of all kinds; keys that no rule uses are
//! skipped by the parser and never kept. Upstream names: k8s.io/api `core/v1`, `discovery/v1`.

use super::{
    managed_fields::ManagedPorts,
    mapping::mappings,
    tolerant_field::{Field, LongText, Name, NumberOrText, Pairs, Present, Time},
};

/// One object of any kind. What is large is boxed: it is handed on several times while it is read.
#[derive(Debug, Default)]
pub struct SlimObject {
    /// Why it is no object at all: what stands in its place, and what was wanted.
    pub(super) broken: Option<String>,
    pub(super) api_version: Field<String>,
    pub(super) kind: Field<String>,
    pub(super) metadata: Field<Box<Metadata>>,
    pub(super) spec: Field<Box<Spec>>,
    pub(super) status: Field<Box<Status>>,
    pub(super) data: Field<Data>,
    pub(super) address_type: Field<String>,
    pub(super) ports: Field<Vec<Field<Port>>>,
    pub(super) endpoints: Field<Vec<Field<Endpoint>>>,
}

mappings! {
    Metadata {
        name: Name = "name",
        namespace: Name = "namespace",
        uid: String = "uid",
        labels: Labels = "labels",
        annotations: Annotations = "annotations",
        managed_fields: ManagedPorts = "managedFields",
        owners: Vec<Field<OwnerReference>> = "ownerReferences",
        deleted: Time = "deletionTimestamp",
        next_page: LongText = "continue",
        remaining: i64 = "remainingItemCount",
        version: String = "resourceVersion",
    }
    Labels {
        service_name: String = "kubernetes.io/service-name",
        proxy_name: String = "service.kubernetes.io/service-proxy-name",
        headless: Present = "service.kubernetes.io/headless",
        cilium_ingress: Present = "cilium.io/ingress",
        cilium_gateway: Present = "io.cilium.gateway/owning-gateway",
        excluded: Present = "node.kubernetes.io/exclude-from-external-load-balancers",
        component: String = "component",
        k3s_service: Name = "svccontroller.k3s.cattle.io/svcname",
        k3s_namespace: Name = "svccontroller.k3s.cattle.io/svcnamespace",
        rke2_service: Name = "svccontroller.rke2.cattle.io/svcname",
        rke2_namespace: Name = "svccontroller.rke2.cattle.io/svcnamespace",
    }
    OwnerReference {
        kind: String = "kind",
        name: Name = "name",
        controller: bool = "controller",
    }
    Annotations {
        config_hash: String = "kubernetes.io/config.hash",
        config_mirror: Present = "kubernetes.io/config.mirror",
        networks: Present = "k8s.v1.cni.cncf.io/networks",
        k3s_args: LongText = "k3s.io/node-args",
        rke2_args: LongText = "rke2.io/node-args",
        state_ends: String = "k8s.io/initial-events-end",
        global: String = "service.cilium.io/global",
        global_alias: String = "io.cilium/global-service",
        served_type: String = "service.cilium.io/type",
        by_envoy: String = "service.cilium.io/lb-l7",
        served_on: Present = "service.cilium.io/node",
        served_on_selected: Present = "service.cilium.io/node-selector",
        vip_host: String = "kube-vip.io/vipHost",
        pool: String = "metallb.io/ip-allocated-from-pool",
        old_pool: String = "metallb.universe.tf/ip-allocated-from-pool",
    }
    Spec {
        kind: String = "type",
        cluster_ip: String = "clusterIP",
        cluster_ips: Vec<Field<String>> = "clusterIPs",
        ip_families: Vec<Field<String>> = "ipFamilies",
        external_ips: Vec<Field<String>> = "externalIPs",
        external_traffic_policy: String = "externalTrafficPolicy",
        internal_traffic_policy: String = "internalTrafficPolicy",
        health_check_node_port: i64 = "healthCheckNodePort",
        selector: Present = "selector",
        ports: Vec<Field<Port>> = "ports",
        node_name: Name = "nodeName",
        host_network: bool = "hostNetwork",
        affinity: Affinity = "affinity",
        node_selector: NodeLabels = "nodeSelector",
        containers: Vec<Field<Container>> = "containers",
        init_containers: Vec<Field<Container>> = "initContainers",
        security_context: SecurityContext = "securityContext",
        service_node_port_range: String = "serviceNodePortRange",
        kube_node_port_ranges: Vec<Field<NumberOrText>> = "kubeNodePortRanges",
        pod_cidrs: Vec<Field<String>> = "podCIDRs",
        template: Box<Template> = "template",
        replicas: i64 = "replicas",
    }
    Template {
        spec: TemplateSpec = "spec",
    }
    TemplateSpec {
        node_selector: Pairs = "nodeSelector",
        tolerations: Vec<Field<Toleration>> = "tolerations",
        affinity: Affinity = "affinity",
        host_network: bool = "hostNetwork",
        containers: Vec<Field<Container>> = "containers",
        init_containers: Vec<Field<Container>> = "initContainers",
    }
    Toleration {
        taint: String = "key",
        operator: String = "operator",
        value: String = "value",
        effect: String = "effect",
    }
    Port {
        name: String = "name",
        protocol: String = "protocol",
        port: i64 = "port",
        target_port: NumberOrText = "targetPort",
        node_port: i64 = "nodePort",
        container_port: i64 = "containerPort",
        host_port: i64 = "hostPort",
        host_ip: String = "hostIP",
    }
    Container {
        name: String = "name",
        command: Vec<Field<LongText>> = "command",
        args: Vec<Field<LongText>> = "args",
        ports: Vec<Field<Port>> = "ports",
        restart_policy: String = "restartPolicy",
        startup: Box<Probe> = "startupProbe",
        liveness: Box<Probe> = "livenessProbe",
        readiness: Box<Probe> = "readinessProbe",
    }
    Probe {
        http: Probed = "httpGet",
        tcp: Probed = "tcpSocket",
        grpc: Probed = "grpc",
    }
    Probed {
        host: String = "host",
        port: NumberOrText = "port",
    }
    Affinity {
        node: NodeAffinity = "nodeAffinity",
    }
    NodeAffinity {
        required: NodeSelector = "requiredDuringSchedulingIgnoredDuringExecution",
    }
    NodeSelector {
        terms: Vec<Field<NodeSelectorTerm>> = "nodeSelectorTerms",
    }
    NodeLabels {
        hostname: Name = "kubernetes.io/hostname",
    }
    NodeSelectorTerm {
        fields: Vec<Field<Requirement>> = "matchFields",
        labels: Vec<Field<Requirement>> = "matchExpressions",
    }
    Requirement {
        field: String = "key",
        operator: String = "operator",
        values: Vec<Field<Name>> = "values",
    }
    SecurityContext {
        sysctls: Vec<Field<NameValue>> = "sysctls",
    }
    NameValue {
        name: String = "name",
        value: NumberOrText = "value",
    }
    Status {
        load_balancer: LoadBalancer = "loadBalancer",
        phase: String = "phase",
        reason: String = "reason",
        started: Time = "startTime",
        nominated: Name = "nominatedNodeName",
        desired: i64 = "desiredNumberScheduled",
        conditions: Vec<Field<Condition>> = "conditions",
        containers: Vec<Field<ContainerStatus>> = "containerStatuses",
        init_containers: Vec<Field<ContainerStatus>> = "initContainerStatuses",
        pod_ip: String = "podIP",
        pod_ips: Vec<Field<Address>> = "podIPs",
        addresses: Vec<Field<Address>> = "addresses",
        node_info: NodeInfo = "nodeInfo",
    }
    LoadBalancer {
        ingress: Vec<Field<Address>> = "ingress",
    }
    Condition {
        kind: String = "type",
        status: String = "status",
        message: LongText = "message",
        since: Time = "lastTransitionTime",
    }
    ContainerStatus {
        name: String = "name",
        id: String = "containerID",
        ready: bool = "ready",
        state: ContainerState = "state",
        last_state: ContainerState = "lastState",
    }
    ContainerState {
        running: Running = "running",
        terminated: Terminated = "terminated",
    }
    Running {
        started: Time = "startedAt",
    }
    Terminated {
        exit_code: i64 = "exitCode",
        message: LongText = "message",
    }
    Address {
        kind: String = "type",
        address: String = "address",
        ip: String = "ip",
        ip_mode: String = "ipMode",
    }
    NodeInfo {
        kubelet_version: String = "kubeletVersion",
        runtime_version: String = "containerRuntimeVersion",
    }
    Endpoint {
        addresses: Vec<Field<String>> = "addresses",
        conditions: Conditions = "conditions",
        node_name: Name = "nodeName",
    }
    Conditions {
        ready: bool = "ready",
        serving: bool = "serving",
        terminating: bool = "terminating",
    }
    Data {
        proxy_config: LongText = "config.conf",
        cluster_configuration: LongText = "ClusterConfiguration",
        proxy_replacement: NumberOrText = "kube-proxy-replacement",
        node_port_range: NumberOrText = "node-port-range",
        node_port_addresses: LongText = "nodeport-addresses",
        bpf_masquerade: NumberOrText = "enable-bpf-masquerade",
        devices: LongText = "devices",
        detects_devices: NumberOrText = "force-device-detection",
        external_ips_anywhere: NumberOrText = "disable-external-ip-mitigation",
        proxy_name: NumberOrText = "k8s-service-proxy-name",
        node_port: NumberOrText = "enable-node-port",
        host_port: NumberOrText = "enable-host-port",
        external_ips: NumberOrText = "enable-external-ips",
        no_backend: NumberOrText = "service-no-backend-response",
        no_endpoints_routable: NumberOrText = "enable-no-service-endpoints-routable",
        sockets_of_host_only: NumberOrText = "bpf-lb-sock-hostns-only",
        wildcard_entries: NumberOrText = "bpf-lb-enable-wildcard-entries",
        datapath_plugins: NumberOrText = "enable-datapath-plugins",
        bind_protection: NumberOrText = "node-port-bind-protection",
        auto_protect: NumberOrText = "enable-auto-protect-node-port-range",
        sctp: NumberOrText = "enable-sctp",
        ipv4: NumberOrText = "enable-ipv4",
        ipv6: NumberOrText = "enable-ipv6",
        ipv4_masquerade: NumberOrText = "enable-ipv4-masquerade",
        ipv6_masquerade: NumberOrText = "enable-ipv6-masquerade",
        masquerade: NumberOrText = "masquerade",
    }
}

impl SlimObject {
    /// An object that is none.
    pub(super) fn broken(why: String) -> Self {
        Self { broken: Some(why), ..Self::default() }
    }

    /// `namespace/name`, or `name`; empty when it has none.
    pub(super) fn title(&self) -> String {
        fn word(field: &Field<Name>) -> Option<&str> {
            match field {
                Field::Absent => None,
                Field::Value(Name(name)) => Some(name),
                Field::WrongType(is) => Some(is),
            }
        }
        let Some(metadata) = self.metadata.seen() else { return String::new() };
        let name = word(&metadata.name).unwrap_or_default();
        word(&metadata.namespace).map_or_else(|| name.to_owned(), |namespace| [namespace, "/", name].concat())
    }
}
