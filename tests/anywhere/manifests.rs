//! The facts that Portreeve reads from manifest files.

use std::{fs, net::IpAddr, path::PathBuf};

use portreeve_cluster::{self as cluster, ClusterSource, Environment, Input, SourceOptions};
use portreeve_facts::{ClusterFacts, Family, NodeAddressKind, PortRange, Protocol, Service, ServiceKind, Source, Why};
use tempfile::TempDir;

/// The facts from files with these contents, on a host with the name `n1`.
pub(crate) fn facts_of(contents: &[impl AsRef<[u8]>]) -> ClusterFacts {
    let directory = TempDir::new().expect("a directory");
    let inputs = contents.iter().enumerate().map(|(index, content)| {
        let path = directory.path().join(format!("{index}.txt"));
        fs::write(&path, content).expect("a file");
        path
    });
    facts_of_paths(inputs.collect())
}

pub(crate) fn facts_of_paths(paths: Vec<PathBuf>) -> ClusterFacts {
    let source = ClusterSource::Files(paths.into_iter().map(Input::from).collect());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut facts = runtime.block_on(cluster::read(&source, None, "n1"));
    // The files have only the objects of one test, so the error about missing Services of the cluster is removed.
    facts.rejected.retain(|gap| gap.detail != facts.origin);
    facts
}

pub(crate) fn as_json(yaml: &str) -> String {
    let value: serde_json::Value = serde_saphyr::from_str(yaml).expect("YAML");
    serde_json::to_string_pretty(&value).expect("JSON")
}

/// A Service in the output of `kubectl get svc -o yaml` (Kubernetes 1.32). A person applied the Service from a file
/// that sets its nodePort.
const APPLIED: &str = r#"apiVersion: v1
kind: Service
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"NodePort"}}
  creationTimestamp: "2026-03-01T10:00:00Z"
  managedFields:
  - apiVersion: v1
    fieldsType: FieldsV1
    fieldsV1:
      f:metadata:
        f:annotations:
          .: {}
          f:kubectl.kubernetes.io/last-applied-configuration: {}
      f:spec:
        f:externalTrafficPolicy: {}
        f:internalTrafficPolicy: {}
        f:ports:
          .: {}
          k:{"port":80,"protocol":"TCP"}:
            .: {}
            f:nodePort: {}
            f:port: {}
            f:protocol: {}
            f:targetPort: {}
          k:{"port":443,"protocol":"TCP"}:
            .: {}
            f:port: {}
            f:protocol: {}
            f:targetPort: {}
        f:selector: {}
        f:sessionAffinity: {}
        f:type: {}
    manager: kubectl-client-side-apply
    operation: Update
    time: "2026-03-01T10:00:00Z"
  - apiVersion: v1
    fieldsType: FieldsV1
    fieldsV1:
      f:status:
        f:loadBalancer: {}
    manager: cloud-controller-manager
    operation: Update
    subresource: status
  name: web
  namespace: shop
  resourceVersion: "4711"
  uid: 5f0c1a52-7b7e-4b51-9f7e-000000000001
spec:
  clusterIP: 10.96.12.13
  clusterIPs:
  - 10.96.12.13
  - fd00:10:96::abcd
  externalIPs:
  - 192.0.2.10
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 31999
  loadBalancerSourceRanges:
  - 10.0.0.0/8
  ipFamilies:
  - IPv4
  - IPv6
  ports:
  - name: http
    nodePort: 30080
    port: 80
    protocol: TCP
    targetPort: 8080
  - name: https
    nodePort: 31234
    port: 443
    targetPort: 8443
  - name: dns
    nodePort: 31053
    port: 53
    protocol: UDP
  type: LoadBalancer
status:
  loadBalancer:
    ingress:
    - ip: 198.51.100.7
      ipMode: VIP
    - ip: 198.51.100.8
      ipMode: Proxy
    - hostname: lb.example.com
"#;

#[test]
fn a_service_keeps_what_rules_use() {
    let facts = facts_of(&[APPLIED]);
    assert_eq!(facts.rejected, []);
    let services = facts.services.get().expect("services");
    let [web] = services.as_slice() else { panic!("one Service, not {services:?}") };
    assert_eq!((web.namespace.as_str(), web.name.as_str()), ("shop", "web"));
    assert_eq!(web.uid, Some("5f0c1a52-7b7e-4b51-9f7e-000000000001".to_owned().into()));
    assert_eq!(web.kind, ServiceKind::LoadBalancer);
    assert_eq!(web.cluster_ips.len(), 2);
    assert_eq!(web.families, Family::BOTH);
    assert_eq!(web.external_ips, [IpAddr::from([192, 0, 2, 10])]);
    assert_eq!(web.load_balancer_ips, [IpAddr::from([198, 51, 100, 7])], "ipMode Proxy is no VIP");
    assert!(web.external_local && web.internal_local);
    assert_eq!(web.source_ranges, [Family::V4]);
    assert_eq!(web.health_check_node_port, Some(31999));
    assert_eq!(web.ports[2].protocol, Protocol::Udp);
    let ports: Vec<_> = web.ports.iter().map(|port| (port.port, port.node_port)).collect();
    assert_eq!(ports, [(80, Some(30080)), (443, Some(31234)), (53, Some(31053))]);
}

#[test]
fn managed_fields_tell_a_chosen_node_port_from_an_allocated_one() {
    let facts = facts_of(&[APPLIED]);
    let fixed: Vec<_> = facts.services.get().expect("services")[0].ports.iter().map(|port| port.fixed).collect();
    assert_eq!(fixed, [Some(true), Some(false), None], "nobody owns the third, so nobody knows");

    let without = APPLIED.replace("managedFields:", "otherFields:");
    let fixed = facts_of(&[without]).services.get().expect("services")[0].ports[0].fixed;
    assert_eq!(fixed, None);
}

#[test]
fn yaml_and_json_and_lists_of_lists_give_the_same_facts() {
    let json = as_json(APPLIED);
    let indented: String = APPLIED.lines().map(|line| format!("  {line}\n")).collect();
    let list = format!("apiVersion: v1\nitems:\n- {}kind: List\n", &indented[2..]);
    let lists = format!(r#"{{"kind":"List","items":[{{"items":[{json}],"kind":"ServiceList"}}]}}"#);
    let bare = format!("\u{feff}\r\n[{}]", json.replace('\n', "\r\n"));
    let typed = format!(r#"{{"kind":"ServiceList","items":[{}]}}"#, json.replace(r#""kind": "Service","#, ""));

    let plain = facts_of(&[APPLIED]);
    assert_eq!(plain.services.get().expect("services").len(), 1);
    for other in [&json, &list, &lists, &bare, &typed, &APPLIED.replace('\n', "\r\n")] {
        let facts = facts_of(&[other]);
        assert_eq!(facts.rejected, [], "{other}");
        assert_eq!(facts.services, plain.services, "{other}");
    }
}

#[test]
fn documents_may_follow_each_other_in_either_format() {
    let service = |name: &str| format!(r#"{{"kind":"Service","metadata":{{"name":"{name}"}},"spec":{{}}}}"#);
    let names = |content: String| {
        let facts = facts_of(&[content]);
        assert_eq!(facts.rejected, []);
        let services = facts.services.get().expect("services").iter();
        services.map(|service| service.name.clone()).collect::<Vec<_>>()
    };
    let (a, b, c) = (service("a"), service("b"), service("c"));
    assert_eq!(names(format!("{a}{b}\n\n{c}\n")), ["a", "b", "c"]);
    assert_eq!(
        names(format!("# a comment\n---\n---\n{a}\n...\n# no document\n---\n{b}\n--- {c}\n---\n")),
        ["a", "b", "c"]
    );
    assert_eq!(names(format!("%YAML 1.2\n---\n{a}\n...\n%YAML 1.2\n---\n{b}\n")), ["a", "b"]);
}

#[test]
fn services_without_a_virtual_address_are_left_out() {
    let facts = facts_of(&["
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, externalIPs: [192.0.2.1]}
---
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: example.com}
---
kind: Service
apiVersion: serving.knative.dev/v1
metadata: {name: somebody-elses-kind}
---
kind: Service
metadata: {name: other-proxy, labels: {service.kubernetes.io/service-proxy-name: mine}}
spec: {ports: [{port: 80}]}
---
kind: Service
metadata: {name: nobodys, labels: {service.kubernetes.io/service-proxy-name: mine, service.kubernetes.io/headless: x}}
spec: {ports: [{port: 80}]}
"]);
    assert_eq!(facts.rejected, []);
    let services = facts.services.get().expect("services");
    let [nobodys, other] = services.as_slice() else { panic!("two Services, not {services:?}") };
    assert_eq!(nobodys.proxy_name.as_deref(), Some(Service::OF_NO_PROXY), "headless comes first");
    assert_eq!(other.proxy_name.as_deref(), Some("mine"));
    assert_eq!(other.families, [Family::V4], "a manifest written by hand means IPv4");
    assert_eq!(other.namespace, "default");
}

#[test]
fn absent_conditions_of_an_endpoint_mean_what_kube_proxy_takes_them_for() {
    let facts = facts_of(&[r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: all}]
endpoints:
- {addresses: [10.244.0.5], nodeName: n1}
- {addresses: [10.244.0.6], conditions: {ready: false}}
- {addresses: [10.244.0.7], conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: names, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
"#]);
    assert_eq!(facts.rejected, []);
    let slices = facts.endpoint_slices.get().expect("slices");
    assert_eq!(slices.len(), 1);
    let conditions: Vec<_> = slices[0].endpoints.iter().map(|end| (end.ready, end.serving, end.terminating)).collect();
    assert_eq!(conditions, [(true, true, false), (false, false, false), (false, true, true)]);
    assert_eq!(slices[0].endpoints[0].node.as_deref(), Some("n1"));
    assert_eq!(slices[0].ports[1].port, None);
}

#[test]
fn this_nodes_pods_are_kept_and_its_name_is_found() {
    let facts = facts_of(&["
kind: Node
metadata: {name: node-one.example.com, labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, 'fd00:244:1::/64']}
status:
  addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: N1}, {type: InternalDNS, address: x.y}]
  nodeInfo: {kubeletVersion: v1.36.3, containerRuntimeVersion: 'containerd://2.1.4'}
---
kind: Pod
metadata:
  name: ours
  namespace: kube-system
  uid: u1
  annotations: {kubernetes.io/config.hash: abc, kubernetes.io/config.mirror: abc}
  ownerReferences: [{kind: Node, name: node-one.example.com, controller: true}]
spec:
  nodeName: node-one.example.com
  hostNetwork: true
  securityContext:
    sysctls:
    - {name: net.ipv4.ip_local_port_range, value: '1024 65535'}
    - {name: net/ipv4/ip_local_reserved_ports, value: '8000,9000-9009'}
  containers: [{name: c, ports: [{containerPort: 8080, hostPort: 8080}, {containerPort: 53, protocol: UDP}]}]
status:
  phase: Running
  podIPs: [{ip: 10.0.0.1}]
  conditions:
  - {type: PodScheduled, status: 'True', lastTransitionTime: '2026-03-01T10:00:00Z'}
  - {type: Ready, status: 'True', lastTransitionTime: '2026-03-01T10:00:09Z'}
---
kind: Pod
metadata: {name: theirs}
spec: {nodeName: node-two}
"]);
    assert_eq!(facts.rejected, []);
    assert_eq!(facts.node_name.as_deref(), Some("node-one.example.com"));
    let node = &facts.nodes.get().expect("nodes")[0];
    assert!(node.excluded_from_load_balancers);
    assert_eq!(node.container_runtime.as_deref(), Some("containerd://2.1.4"));
    assert_eq!(node.pod_families, Family::BOTH);
    assert_eq!(node.addresses.iter().map(|address| address.kind).collect::<Vec<_>>(), [NodeAddressKind::InternalIp]);
    let pods = facts.pods.get().expect("pods");
    let [pod] = pods.as_slice() else { panic!("one Pod, not {pods:?}") };
    assert!(pod.host_network && pod.ready && !pod.finished);
    assert_eq!(pod.config_hash.as_deref(), Some("abc"));
    assert_eq!(pod.scheduled.map(|at| at.to_string()).as_deref(), Some("2026-03-01T10:00:00Z"));
    assert_eq!(pod.ip_local_port_range, PortRange::new(1024, 65535));
    assert_eq!(pod.ip_local_reserved_ports, "8000,9000-9009".parse().ok());
    assert_eq!(pod.ports.len(), 2);
}

#[test]
fn what_the_input_does_not_hold_is_unknown() {
    let facts = facts_of(&["kind: Service\nmetadata: {name: a}\nspec: {clusterIP: None}\n"]);
    assert_eq!(facts.services.get().expect("services").len(), 0);
    let gaps = [facts.endpoint_slices.gap(), facts.pods.gap(), facts.nodes.gap(), facts.proxy_config.gap()];
    for gap in gaps {
        assert_eq!(gap.expect("a gap").why, Why::NotRequested);
    }
    assert_eq!(facts.rejected, []);
    assert!(facts.configured);
}

#[test]
fn without_a_cluster_everything_is_unknown_and_nothing_was_configured() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let facts = runtime.block_on(cluster::read(&ClusterSource::None, Some("n9"), "n1"));
    assert!(!facts.configured);
    assert_eq!((facts.origin.as_str(), facts.node_name.as_deref()), ("none", Some("n9")));
    assert_eq!(facts.services.gap().map(|gap| (gap.source, gap.why)), Some((Source::Services, Why::NotRequested)));
    assert_eq!(facts.node_port_range.get().expect("a range").range, PortRange::DEFAULT_NODE_PORTS);
}

#[test]
fn the_first_source_that_applies_is_taken() {
    use portreeve_cluster::{Access, Credentials};

    let home = TempDir::new().expect("a directory");
    let environment =
        Environment { kubeconfig: Some("/a:/b:".into()), home: Some(home.path().to_owned()), in_cluster: true };
    let files = |paths: &[&str], context: Option<&str>| {
        let paths = paths.iter().map(PathBuf::from).collect();
        let credentials = Credentials::Kubeconfig { paths, context: context.map(str::to_owned) };
        ClusterSource::Api(Access { credentials, api_server: None, request_timeout: Access::REQUEST_TIMEOUT })
    };
    let discover =
        |chosen: &SourceOptions, environment: &Environment| ClusterSource::discover(chosen.clone(), environment);

    let mut chosen = SourceOptions {
        services: vec![Input::Stdin],
        kubeconfig: Some("/k".into()),
        context: Some("c".into()),
        api_server: None,
        request_timeout: None,
    };
    assert_eq!(discover(&chosen, &environment), ClusterSource::Files(vec![Input::Stdin]));
    chosen.services.clear();
    assert_eq!(discover(&chosen, &environment), files(&["/k"], Some("c")));
    chosen.kubeconfig = None;
    assert_eq!(discover(&chosen, &environment), files(&["/a", "/b"], Some("c")), "a context is not the pod's");
    chosen.context = None;
    let in_cluster =
        Access { credentials: Credentials::InCluster, api_server: None, request_timeout: Access::REQUEST_TIMEOUT };
    assert_eq!(discover(&chosen, &environment), ClusterSource::Api(in_cluster));

    let mut environment = Environment { in_cluster: false, ..environment };
    assert_eq!(discover(&chosen, &environment), files(&["/a", "/b"], None));
    environment.kubeconfig = None;
    assert_eq!(discover(&chosen, &environment), ClusterSource::None);
    chosen.api_server = Some("https://192.0.2.10:6443".parse().expect("an URL"));
    let ClusterSource::Api(access) = discover(&chosen, &environment) else { panic!("an address that was named") };
    assert_eq!(access.api_server, chosen.api_server);
    chosen.api_server = None;
    let own = home.path().join(".kube/config");
    fs::create_dir_all(own.parent().expect("a parent")).expect("a directory");
    fs::write(&own, "").expect("a file");
    assert_eq!(discover(&chosen, &environment), files(&[own.to_str().expect("a path")], None));
}

#[test]
fn a_whole_number_is_one_however_it_is_written() {
    let yaml =
        "kind: Service\nmetadata: {name: web}\nspec: {type: NodePort, ports: [{port: 8e1, nodePort: 30080.0}]}\n";
    let json = r#"{"kind":"Service","metadata":{"name":"web"},"spec":{"type":"NodePort","ports":[{"port":8e1,"nodePort":30080.0}]}}"#;
    for text in [yaml, json] {
        let facts = facts_of(&[text]);
        assert_eq!(facts.rejected, [], "{text}");
        let port = &facts.services.get().expect("services")[0].ports[0];
        assert_eq!((port.port, port.node_port), (80, Some(30080)), "{text}");
    }
}
