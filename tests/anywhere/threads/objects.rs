//! Makes Kubernetes objects as YAML. Each function takes only the fields that matter for a public thread.

/// A Service from the columns of `kubectl get services`: its name (`default/web`), its type, and its ports
/// (`80:30080/TCP,443:30443/TCP`). `more` is one more line of the Service's spec, for example
/// `externalIPs: [192.0.2.9]`.
pub(super) fn service(name: &str, kind: &str, ports: &str, more: &str) -> String {
    let entries = ports.split(',').enumerate().map(|(index, text)| {
        let (numbers, protocol) = text.split_once('/').expect("a protocol");
        let (port, node_port) = match numbers.split_once(':') {
            Some((port, node_port)) => (port, format!(", nodePort: {node_port}")),
            None => (numbers, String::new()),
        };
        format!("  - {{name: p{index}, port: {port}, protocol: {protocol}{node_port}}}\n")
    });
    let entries: String = entries.collect();
    format!(
        "kind: Service\nmetadata: {}\nspec:\n  type: {kind}\n  clusterIP: 10.96.0.10\n  ports:\n{entries}  {more}\n---\n",
        metadata(name)
    )
}

/// A Service as [`service`] makes it, and an EndpointSlice: each port of the Service has an endpoint on each of the two
/// nodes.
pub(super) fn served(name: &str, kind: &str, ports: &str, more: &str) -> String {
    let slice = endpoints(name, ports.split(',').count(), &["10.244.0.5@n1", "10.244.1.5@n2"]);
    service(name, kind, ports, more) + &slice
}

pub(super) fn balanced(service: &str, address: &str) -> String {
    service.replacen("---\n", &format!("status: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}\n---\n"), 1)
}

pub(super) fn annotated(object: &str, annotation: &str) -> String {
    object.replacen("metadata: {", &format!("metadata: {{annotations: {{{annotation}}}, "), 1)
}

/// Removes the uid of an object. The object is then like a manifest that no cluster has stored.
pub(super) fn written(object: &str) -> String {
    let (before, rest) = object.split_once(", uid: ").expect("a uid");
    let (_, after) = rest.split_once('}').expect("the end of its metadata");
    format!("{before}}}{after}")
}

/// An EndpointSlice of a Service. Each endpoint has the form `10.244.0.5@n1`.
pub(super) fn endpoints(service: &str, ports: usize, endpoints: &[&str]) -> String {
    let (namespace, name) = service.split_once('/').expect("a namespace");
    let ports: String = (0..ports).map(|index| format!("- {{name: p{index}, port: {}}}\n", 8080 + index)).collect();
    let endpoints = endpoints.iter().map(|endpoint| {
        let (address, node) = endpoint.split_once('@').expect("a node");
        format!("- {{addresses: [{address}], conditions: {{ready: true}}, nodeName: {node}}}\n")
    });
    let endpoints: String = endpoints.collect();
    format!(
        "kind: EndpointSlice\nmetadata: {{name: {name}, namespace: {namespace}, \
         labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nports:\n{ports}endpoints:\n{endpoints}---\n"
    )
}

/// A ready pod on `n1`, in the host's network. The pod declares these ports, and its uid is `uid-` and the pod's name.
pub(super) fn host_pod(name: &str, ports: &[u16]) -> String {
    let ports: String =
        ports.iter().map(|port| format!("    - {{containerPort: {port}, hostPort: {port}}}\n")).collect();
    format!(
        "kind: Pod\nmetadata: {}\nspec:\n  nodeName: n1\n  hostNetwork: true\n  containers:\n  - name: main\n    ports:\n\
         {ports}status: {{phase: Running, podIPs: [{{ip: 192.0.2.1}}], conditions: [{{type: Ready, status: 'True'}}]}}\n---\n",
        metadata(name)
    )
}

/// A pod in the host's network. Only the probe of the pod names the pod's port.
pub(super) fn probed(name: &str, port: u16) -> String {
    let probe = format!("livenessProbe: {{httpGet: {{port: {port}}}}}\n");
    host_pod(name, &[]).replace("    ports:\n", &format!("    {probe}"))
}

pub(super) fn crashing(pod: &str) -> String {
    let statuses = "containerStatuses: [{ready: false, state: {waiting: {reason: CrashLoopBackOff}}, \
                    lastState: {terminated: {exitCode: 1}}}], conditions: [{type: Ready, status: 'False'}]";
    pod.replace("conditions: [{type: Ready, status: 'True'}]", statuses)
}

pub(super) fn of_daemon_set(name: &str, pod: &str) -> String {
    let owner = format!("metadata: {{ownerReferences: [{{kind: DaemonSet, name: {name}, controller: true}}], ");
    pod.replacen("metadata: {", &owner, 1)
}

pub(super) fn pod_with_host_ports(name: &str, ports: &[u16]) -> String {
    host_pod(name, ports).replace("hostNetwork: true", "hostNetwork: false").replace("192.0.2.1", "10.244.0.9")
}

/// A ready pod on `n1` with its own network. The pod declares these ports without hostPorts.
pub(super) fn own_pod(name: &str, ports: &[u16]) -> String {
    let undeclared = |text: String, port: &u16| text.replace(&format!(", hostPort: {port}"), "");
    ports.iter().fold(pod_with_host_ports(name, ports), undeclared)
}

pub(super) fn with_sysctls(pod: &str, sysctls: &[(&str, &str)]) -> String {
    let entry = |(name, value): &(&str, &str)| format!("{{name: {name}, value: '{value}'}}");
    let list = sysctls.iter().map(entry).collect::<Vec<_>>().join(", ");
    pod.replacen("spec:\n", &format!("spec:\n  securityContext: {{sysctls: [{list}]}}\n"), 1)
}

pub(super) fn pending(pod: &str) -> String {
    let (spec, _) = pod.split_once("status:").expect("a status");
    let refused = "conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, lastTransitionTime: \
                   '2027-01-15T07:00:00Z', message: '0/2 nodes are available: 2 node(s) didn''t have free ports for the \
                   requested pod ports.'}]";
    format!("{}status: {{phase: Pending, {refused}}}\n---\n", spec.replace("  nodeName: n1\n", ""))
}

pub(super) fn service_lb(service: &str, pod: &str) -> String {
    let (namespace, name) = service.split_once('/').expect("a namespace");
    let label = |key, value| format!("svccontroller.k3s.cattle.io/{key}: {value}");
    let labels = [label("svcnamespace", namespace), label("svcname", name)].join(", ");
    let only_here = "spec:\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                     {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}}}\n";
    let labelled = pod.replacen("metadata: {", &format!("metadata: {{labels: {{{labels}}}, "), 1);
    labelled.replacen("spec:\n", only_here, 1)
}

pub(super) fn api_server(range: &str) -> String {
    format!(
        "kind: Pod\nmetadata: {}\nspec:\n  nodeName: cp1\n  containers:\n  - name: main\n    \
         command: [kube-apiserver, --service-node-port-range={range}]\n---\n",
        metadata("kube-system/kube-apiserver-cp1")
    )
}

pub(super) fn config_map(name: &str, data: &[&str]) -> String {
    let lines: String = data.iter().map(|line| format!("  {line}\n")).collect();
    format!("kind: ConfigMap\nmetadata: {}\ndata:\n{lines}---\n", metadata(&format!("kube-system/{name}")))
}

fn metadata(name: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    format!("{{name: {name}, namespace: {namespace}, uid: uid-{name}}}")
}
