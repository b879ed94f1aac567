//! Charts with their default values: a healthy chart has no finding above info. A person copied the kinds and
//! ports of each chart from the chart's defaults.

use super::{found, service, workload};

/// A chart, and its objects. Each object is one line:
///
/// - `DaemonSet name host 9100/tcp`: a workload in the host's network with these container ports;
/// - `DaemonSet name 80@8080`: a workload in its own network; `container@host` is a hostPort;
/// - `Deployment*2 name 80`: a workload with this number of replicas;
/// - `Service name 80:30080`: a port with its nodePort.
type Chart = (&'static str, &'static [&'static str]);

const HEALTHY: [Chart; 52] = [
    ("ingress-nginx", &["Deployment controller 80 443 8443", "Service controller 80 443"]),
    ("ingress-nginx with hostPorts", &["DaemonSet controller 80@80 443@443 8443", "Service controller 80 443"]),
    ("traefik", &["Deployment traefik 8000 8443 9100 8080", "Service traefik 80 443"]),
    ("haproxy-ingress", &["DaemonSet haproxy 80@80 443@443 1024@1024", "Service haproxy 80 443 1024"]),
    ("metallb", &["Deployment controller 7472", "DaemonSet speaker host 7472 7946 7946/udp 7473"]),
    ("kube-vip", &["DaemonSet kube-vip host"]),
    (
        "kube-prometheus-stack",
        &[
            "Deployment grafana 3000",
            "Deployment operator 10250",
            "DaemonSet node-exporter host 9100",
            "StatefulSet prometheus 9090",
            "Service prometheus 9090",
        ],
    ),
    ("prometheus-node-exporter", &["DaemonSet node-exporter host 9100", "Service node-exporter 9100"]),
    ("grafana", &["Deployment grafana 3000", "Service grafana 80"]),
    ("loki", &["StatefulSet*3 loki 3100 9095 7946", "Service loki 3100 9095"]),
    ("promtail", &["DaemonSet promtail 3101"]),
    ("alloy", &["DaemonSet alloy 12345", "Service alloy 12345"]),
    ("tempo", &["StatefulSet tempo 3200 6831/udp 4317 4318", "Service tempo 3200 4317 4318"]),
    ("fluent-bit", &["DaemonSet fluent-bit 2020", "Service fluent-bit 2020"]),
    ("fluentd", &["DaemonSet fluentd 24231", "Service fluentd 24231"]),
    ("filebeat", &["DaemonSet filebeat"]),
    ("elasticsearch", &["StatefulSet*3 master 9200 9300", "Service master 9200 9300"]),
    ("kibana", &["Deployment kibana 5601", "Service kibana 5601"]),
    (
        "opentelemetry-collector",
        &["DaemonSet agent 4317@4317 4318@4318 6831@6831/udp 14250@14250 14268@14268 9411@9411"],
    ),
    ("jaeger", &["DaemonSet agent 5775@5775/udp 6831@6831/udp 6832@6832/udp 5778@5778 14271", "Service query 80"]),
    ("datadog", &["DaemonSet agent 8125/udp 8126@8126", "Deployment cluster-agent 5005", "Service cluster-agent 5005"]),
    ("newrelic-infrastructure", &["DaemonSet kubelet host", "DaemonSet controlplane host"]),
    ("falco", &["DaemonSet falco 8765"]),
    ("cert-manager", &["Deployment controller 9402 9403", "Deployment webhook 10250 6080", "Service webhook 443"]),
    ("external-dns", &["Deployment external-dns 7979", "Service external-dns 7979"]),
    ("metrics-server", &["Deployment metrics-server 10250", "Service metrics-server 443"]),
    ("cluster-autoscaler", &["Deployment cluster-autoscaler 8085", "Service cluster-autoscaler 8085"]),
    ("descheduler", &["Deployment descheduler 10258"]),
    ("argo-cd", &["Deployment server 8080 8083", "StatefulSet controller 8082", "Service server 80 443"]),
    ("argo-cd as NodePort", &["Deployment server 8080", "Service server 80:30080 443:30443"]),
    ("flux", &["Deployment source-controller 9090 8080 9440", "Service source-controller 80"]),
    ("calico", &["DaemonSet calico-node host", "Deployment typha host 5473", "Service typha 5473"]),
    (
        "cilium",
        &[
            "DaemonSet cilium host 4244@4244 9962@9962",
            "DaemonSet envoy host 9964@9964",
            "Deployment*2 operator host 9963@9963",
        ],
    ),
    ("flannel", &["DaemonSet flannel host"]),
    ("aws-vpc-cni", &["DaemonSet aws-node host 61678"]),
    ("node-local-dns", &["DaemonSet node-local-dns host 53 53/udp 9253"]),
    ("longhorn", &["DaemonSet manager 9500 9502", "Deployment*2 ui 8000", "Service frontend 80"]),
    ("rook-ceph", &["Deployment operator 9443", "DaemonSet csi-rbdplugin host", "Service mgr 9283 7000"]),
    ("openebs", &["DaemonSet io-engine host 10124 8420", "Deployment localpv"]),
    ("csi-driver-nfs", &["DaemonSet csi-nfs-node host 29653", "Deployment csi-nfs-controller host 29652"]),
    ("aws-ebs-csi-driver", &["DaemonSet ebs-csi-node 9808", "Deployment*2 ebs-csi-controller 9808"]),
    ("minio", &["StatefulSet*4 minio 9000 9001", "Service minio 9000", "Service console 9001"]),
    ("harbor as NodePort", &["Deployment nginx 8080 8443", "Service harbor 80:30002 443:30003"]),
    ("gitlab", &["Deployment*2 webservice 8080 8181", "Deployment*2 shell 2222", "Service shell 22"]),
    ("redis", &["StatefulSet master 6379", "StatefulSet*3 replicas 6379", "Service master 6379"]),
    ("postgresql", &["StatefulSet postgresql 5432", "Service postgresql 5432"]),
    ("kafka", &["StatefulSet*3 controller 9092 9093 9094", "Service kafka 9092"]),
    (
        "vault and consul",
        &[
            "StatefulSet*3 vault 8200 8201",
            "DaemonSet consul-client 8500@8500 8502@8502 8301 8301/udp",
            "Service vault 8200 8201",
        ],
    ),
    ("istio", &["Deployment istiod 8080 15010 15017", "DaemonSet ztunnel 15020", "Service gateway 15021 80 443"]),
    ("linkerd", &["Deployment proxy-injector 8443 9995", "Service proxy-injector 443"]),
    ("velero", &["Deployment velero 8085", "DaemonSet node-agent 8085"]),
    (
        "jenkins, keycloak and nvidia-device-plugin",
        &[
            "StatefulSet jenkins 8080 50000",
            "StatefulSet keycloak 8080 8443 9000",
            "DaemonSet nvidia-device-plugin",
            "Service jenkins 8080",
        ],
    ),
];

/// Charts with values that people or other charts set. Each chart has the expected finding and the finding's severity.
const SICK: [(Chart, &str); 9] = [
    (
        ("metrics-server in the host's network", &["Deployment metrics-server host 10250"]),
        "warning host-network-port-taken/daemon",
    ),
    (
        ("cert-manager's webhook in the host's network", &["Deployment webhook host 10250"]),
        "warning host-network-port-taken/daemon",
    ),
    (("spegel", &["DaemonSet spegel 5000@30020", "Service registry 5000:30021"]), "info host-port-conflict/latent"),
    (
        ("two node exporters", &["DaemonSet a host 9100", "DaemonSet b host 9100"]),
        "warning pod-waits-for-port/workloads",
    ),
    (
        ("an exporter and traefik's metrics", &["DaemonSet a host 9100", "DaemonSet traefik 9100@9100"]),
        "warning pod-waits-for-port/workloads",
    ),
    (
        ("two ingress controllers", &["DaemonSet nginx 80@80", "DaemonSet haproxy 8080@80"]),
        "warning pod-waits-for-port/workloads",
    ),
    (
        ("two collectors of traces", &["DaemonSet otel 6831@6831/udp", "DaemonSet jaeger 6831@6831/udp"]),
        "warning pod-waits-for-port/workloads",
    ),
    (
        ("argo-cd and a dashboard", &["Service argo 80:30080", "Service dashboard 443:30080"]),
        "warning node-port-claimed-twice/refused",
    ),
    (("mosquitto", &["Service mosquitto 1883:1883"]), "warning node-port-range-mismatch/outside"),
];

fn rendered(lines: &[&str]) -> String {
    lines.iter().map(|line| object(line)).collect()
}

fn object(line: &str) -> String {
    let mut words = line.split(' ');
    let (kind, name) = (words.next().expect("a kind"), words.next().expect("a name"));
    let words: Vec<&str> = words.collect();
    if kind == "Service" {
        let port = |(index, word): (usize, &&str)| match word.split_once(':') {
            Some((port, node_port)) => format!("name: p{index}, port: {port}, nodePort: {node_port}"),
            None => format!("name: p{index}, port: {word}"),
        };
        let ports: Vec<String> = words.iter().enumerate().map(port).collect();
        // The function `service` adds a first port 80. The `replace` below removes this port.
        let text = service(name, &format!("x: 0}}, {{{}", ports.join("}, {")));
        return text.replace("{port: 80, x: 0}, ", "");
    }
    let (kind, replicas) = kind
        .split_once('*')
        .map_or((kind, String::new()), |(kind, replicas)| (kind, format!("replicas: {replicas}, ")));
    let host_network = if words.first() == Some(&"host") { "hostNetwork: true, " } else { "" };
    let port = |word: &&&str| {
        let (numbers, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
        let (port, host_port) = numbers
            .split_once('@')
            .map_or((numbers, String::new()), |(port, host_port)| (port, format!(", hostPort: {host_port}")));
        format!("{{containerPort: {port}{host_port}, protocol: {}}}", protocol.to_uppercase())
    };
    let ports: Vec<String> = words.iter().filter(|word| **word != "host").map(|word| port(&word)).collect();
    let pods = format!("{host_network}containers: [{{ports: [{}]}}]", ports.join(", "));
    workload(kind, name, &replicas, &pods)
}

#[test]
fn of_healthy_charts_nothing_above_information_is_said() {
    for (name, lines) in HEALTHY {
        let found = found(&rendered(lines), &[]);
        let above: Vec<&String> = found.iter().filter(|line| !line.contains(" info ")).collect();
        assert!(above.is_empty(), "{name}: {above:?}");
    }
}

#[test]
fn what_is_sick_in_a_chart_is_found() {
    for ((name, lines), rule) in SICK {
        let found = found(&rendered(lines), &[]);
        let reported = found.iter().any(|line| line.contains(&format!(" {rule} ")));
        assert!(reported, "{name}: {found:?}");
    }
}

#[test]
fn each_chart_has_the_objects_that_its_lines_name() {
    for (name, lines) in HEALTHY {
        let objects = rendered(lines).matches("\nkind: ").count();
        assert_eq!(objects, lines.len(), "{name}");
    }
    let exporter = rendered(&["DaemonSet a host 9100/udp", "Service s 80:30100"]);
    assert!(exporter.contains("hostNetwork: true, containers: [{ports: [{containerPort: 9100, protocol: UDP}]}]"));
    assert!(exporter.contains("ports: [{name: p0, port: 80, nodePort: 30100}]"), "{exporter}");
}
