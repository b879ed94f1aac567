//! Each rule for manifests: one case with a finding, and one case without.

use serde_json::Value;

use super::{containers, found, lint, sentence, service, workload};

const NOTHING: [&str; 0] = [];

#[test]
fn one_node_port_of_two_services_is_told_at_both() {
    let both = service("shop/web", "nodePort: 30080") + &service("api", "nodePort: 30080");
    assert_eq!(
        found(&both, &[]),
        [
            "6:32 warning node-port-claimed-twice/refused Service shop/web 30080/tcp",
            "13:32 warning node-port-claimed-twice/refused Service default/api 30080/tcp",
        ]
    );
    let apart = service("shop/web", "nodePort: 30080") + &service("api", "nodePort: 30081");
    assert_eq!(found(&apart, &[]), NOTHING);
    let copies = service("web", "nodePort: 30080") + &service("web", "nodePort: 30080");
    assert_eq!(found(&copies, &[]), NOTHING);
    // The API server refuses two Services with one nodePort, even with different protocols.
    let udp = service("web", "nodePort: 30080") + &service("dns", "protocol: UDP, nodePort: 30080");
    assert_eq!(found(&udp, &[]).len(), 2);
}

#[test]
fn of_two_new_services_the_first_is_created_and_a_host_port_is_no_reason_for_a_refusal() {
    let summaries = |manifest: &str| {
        let (_, stdout, _) = lint(&[("a.yaml", manifest)], &["a.yaml", "-o", "json"]);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("findings");
        findings.iter().map(|it| it["summary"].as_str().expect("a sentence").to_owned()).collect::<Vec<_>>()
    };
    let both = service("shop/web", "nodePort: 30080") + &service("api", "nodePort: 30080");
    let of = |name: &str, other: &str, end: &str| {
        let refused = "the API server creates only the first of these Services";
        format!("nodePort 30080/tcp of {name} is also nodePort of {other}: {refused}{end}.")
    };
    assert_eq!(summaries(&both), [of("shop/web", "default/api", ""), of("default/api", "shop/web", "")]);
    let agent = workload("DaemonSet", "agent", "", &containers("containerPort: 80, hostPort: 30080"));
    let end = "; 30080 is also hostPort of DaemonSet default/agent";
    assert_eq!(summaries(&(both + &agent)), [of("shop/web", "default/api", end), of("default/api", "shop/web", end)]);
    let twice = service("dns", "name: a, nodePort: 30053}, {name: b, port: 81, nodePort: 30053");
    let all = summaries(&twice);
    assert!(all[0].ends_with("of default/dns port b: the API server refuses to create this Service."), "{all:?}");
}

#[test]
fn of_two_copies_of_a_service_the_one_with_the_number_is_marked() {
    let copies = service("shop/web", "nodePort: 30080") + &service("shop/web", "nodePort: 30090");
    let (api, other) = (service("api", "nodePort: 30080"), service("shop/web", "nodePort: 29000"));
    assert_eq!(
        found(
            &(copies + &api + &other),
            &["--rule", "node-port-claimed-twice", "--rule", "node-port-range-mismatch/outside"]
        ),
        [
            "6:32 warning node-port-claimed-twice/refused Service shop/web 30080/tcp",
            "20:32 warning node-port-claimed-twice/refused Service default/api 30080/tcp",
            "27:32 warning node-port-range-mismatch/outside Service shop/web 29000/tcp",
        ]
    );
    let health = |number: u16| {
        let line = format!("type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: {number}");
        service("web", "name: x").replace("type: NodePort", &line)
    };
    let lines = found(&(health(30100) + &health(29100)), &["--rule", "node-port-range-mismatch/outside"]);
    assert_eq!(lines, ["16:24 warning node-port-range-mismatch/outside Service default/web 29100/tcp"]);
}

#[test]
fn two_protocols_of_one_number_need_one_port() {
    let two = |port: u16| {
        let second = format!("nodePort: 30053}}, {{name: b, protocol: UDP, port: {port}, nodePort: 30053");
        service("dns", &second)
    };
    assert_eq!(found(&two(80), &[]), NOTHING);
    let lines = found(&two(81), &[]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("node-port-claimed-twice/refused Service default/dns 30053/tcp"), "{lines:?}");
    assert!(lines[1].ends_with("node-port-claimed-twice/refused Service default/dns 30053/udp"), "{lines:?}");
}

#[test]
fn a_number_that_one_service_writes_twice_is_told_once_at_each_field() {
    let both = service("dns", "name: a, nodePort: 30053}, {name: b, port: 81, nodePort: 30053");
    let (_, stdout, _) = lint(&[("a.yaml", &both)], &["a.yaml", "--no-headers"]);
    let lines: Vec<&str> = stdout.lines().collect();
    let [first, second] = lines[..] else { panic!("{stdout}") };
    assert!(first.starts_with("a.yaml:6:41: ") && first.contains("of default/dns port a is also"), "{first}");
    assert!(second.contains("of default/dns port b is also nodePort of default/dns port a:"), "{second}");
}

/// If no user sets a value, a chart may render the key `nodePort` without a number.
#[test]
fn a_node_port_that_is_empty_or_zero_is_no_number() {
    let rendered = |number: &str| {
        let of_type = |kind: &str, name: &str| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: web}}\nspec:\n  type: {kind}\n  ports:\n  \
                 - port: 8080\n    name: http\n    nodePort:{number}\n  - port: 8443\n    name: https\n    nodePort:{number}\n---\n"
            )
        };
        of_type("LoadBalancer", "edge") + &of_type("ClusterIP", "metrics")
    };
    for number in ["", " null", " ~", " 0", " # none"] {
        assert_eq!(found(&rendered(number), &[]), NOTHING, "{number:?}");
    }
    assert_eq!(found(&rendered(" 31080"), &["--rule", "node-port-claimed-twice"]).len(), 2, "http and https");
}

#[test]
fn who_is_in_no_conflict_is_not_named_in_one() {
    let port = containers("containerPort: 80, hostPort: 8080");
    for count in [2, 40] {
        let sets = (0..count).map(|index| workload("DaemonSet", &format!("set-{index}"), "", &port));
        let innocent = format!("nodeSelector: {{pool: a}}, tolerations: [{{key: pool, operator: Exists}}], {port}");
        let text = sets.collect::<String>() + &workload("Deployment", "innocent", "", &innocent);
        let (_, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "json"]);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("findings");
        assert_eq!(findings.len(), count, "{stdout}");
        for finding in findings {
            assert_eq!(finding["related"].as_array().map(Vec::len), Some(16.min(count - 1)), "{finding}");
            assert!(!finding.to_string().contains("innocent"), "{finding}");
        }
    }
}

#[test]
fn an_address_and_port_of_two_services_is_told_once_at_each() {
    let of = |name: &str, ports: &str| {
        service(name, ports).replace("  type: NodePort", "  externalIPs: [192.0.2.77]\n  type: ClusterIP")
    };
    let found = |one: &str, other: &str| found(&(of("one", one) + &of("two", other)), &[]);
    let two_ports = "name: a}, {name: b, port: 443";
    assert_eq!(
        found(two_ports, two_ports),
        [
            "5:17 warning external-ip-conflict/claimed-twice Service default/one",
            "13:17 warning external-ip-conflict/claimed-twice Service default/two",
        ]
    );
    assert_eq!(found("protocol: UDP", "protocol: TCP"), NOTHING);
    let text = of("one", "name: a") + &of("two", "name: a");
    let (_, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml"]);
    assert!(!stdout.contains("kubectl"), "nothing is there to be patched: {stdout}");
}

#[test]
fn a_health_check_is_a_number_like_any_other() {
    let health = |number: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: lb}}\nspec:\n  type: LoadBalancer\n  \
             healthCheckNodePort: {number}\n  externalTrafficPolicy: Local\n  ports: [{{port: 80, nodePort: 30081}}]\n"
        )
    };
    let both = |number| service("web", "nodePort: 30080") + &health(number);
    assert_eq!(
        found(&both(30080), &[]),
        [
            "6:32 warning node-port-claimed-twice/refused Service default/web 30080/tcp",
            "13:24 warning node-port-claimed-twice/refused Service default/lb 30080/tcp",
        ]
    );
    assert_eq!(found(&both(30079), &[]), NOTHING);
    assert_eq!(
        found(&health(40000), &[]),
        ["6:24 warning node-port-range-mismatch/outside Service default/lb 40000/tcp"]
    );
}

#[test]
fn a_number_outside_the_range_is_refused() {
    let line = "6:32 warning node-port-range-mismatch/outside Service default/web 32768/tcp";
    let manifest = service("web", "nodePort: 32768");
    assert_eq!(found(&manifest, &[]), [line]);
    assert_eq!(found(&manifest, &["--node-port-range", "32768-40000"]), NOTHING);
    assert!(
        sentence(&manifest, "node-port-range-mismatch/outside", &[])
            .ends_with("the API server refuses to create this Service.")
    );
    for inside in ["30000", "30085"] {
        assert_eq!(found(&service("web", &format!("nodePort: {inside}")), &[]), NOTHING);
    }
    // A Service with a uid may exist, so the assumed range may be wrong.
    let export = manifest.replace("{name: web,", "{name: web, uid: u,");
    let (code, _, stderr) = lint(&[("a.yaml", &export)], &["a.yaml"]);
    assert!(code == 2 && stderr.contains("Service default/web has nodePort 32768"), "{code}: {stderr}");
}

#[test]
fn a_written_number_in_the_dynamic_band_is_information() {
    let line = "6:32 info node-port-range-mismatch/band Service default/web 30086/tcp";
    let manifest = service("web", "nodePort: 30086");
    assert_eq!(found(&manifest, &[]), [line]);
    // A small range has no bands. In a wide range, the static band is larger.
    assert_eq!(found(&manifest, &["--node-port-range", "30080-30090"]), NOTHING);
    assert_eq!(found(&manifest, &["--node-port-range", "30000-34095"]), NOTHING);
    // The `managedFields` of an object from a cluster show whether a person chose the nodePort.
    let chosen = manifest.replace("{name: web,", "{name: web, uid: u, managedFields: [],");
    assert_eq!(found(&chosen, &[]), NOTHING);
}

#[test]
fn a_host_port_that_a_node_port_has_is_told_at_the_service() {
    let agent = |port: &str| workload("DaemonSet", "agent", "", &containers(port));
    let web = service("web", "nodePort: 30080");
    let both = web.clone() + &agent("containerPort: 80, hostPort: 30080");
    assert_eq!(found(&both, &[]), ["6:32 warning node-port-claimed-twice/pods Service default/web 30080/tcp"]);
    assert_eq!(found(&(web + &agent("containerPort: 80, hostPort: 8080")), &[]), NOTHING);
}

#[test]
fn two_daemon_sets_with_one_host_port_are_told_at_both() {
    let of = |name: &str, port: &str| workload("DaemonSet", name, "", &containers(port));
    let both = of("one", "containerPort: 80, hostPort: 8080") + &of("two", "containerPort: 81, hostPort: 8080");
    assert_eq!(
        found(&both, &[]),
        [
            "5:74 warning pod-waits-for-port/workloads DaemonSet default/one 8080/tcp",
            "11:74 warning pod-waits-for-port/workloads DaemonSet default/two 8080/tcp",
        ]
    );
    for other in ["containerPort: 81, hostPort: 8081", "containerPort: 81, hostPort: 8080, protocol: UDP"] {
        assert_eq!(found(&(of("one", "containerPort: 80, hostPort: 8080") + &of("two", other)), &[]), NOTHING);
    }
    let pools = |pool: &str| {
        let pods = format!("nodeSelector: {{pool: {pool}}}, {}", containers("containerPort: 80, hostPort: 8080"));
        workload("DaemonSet", pool, "", &pods)
    };
    assert_eq!(found(&(pools("a") + &pools("b")), &[]), NOTHING);
}

#[test]
fn a_pods_port_in_the_range_is_told_on_whatever_way_it_is_the_nodes() {
    let host_port = workload("DaemonSet", "agent", "", &containers("containerPort: 80, hostPort: 31000"));
    assert_eq!(found(&host_port, &[]), ["5:74 info host-port-conflict/latent DaemonSet default/agent 31000/tcp"]);
    let known = ["--node-port-range", "30000-32767"];
    let line = "5:74 warning host-port-conflict/latent DaemonSet default/agent 31000/tcp";
    assert_eq!(found(&host_port, &known), [line], "a pod of each node has it");
    let pods = format!("hostNetwork: true, {}", containers("containerPort: 31000"));
    let host_network = workload("Deployment", "edge", "", &pods);
    assert_eq!(found(&host_network, &[]), ["5:79 info listener-on-node-port/latent Deployment default/edge 31000/tcp"]);
    assert!(found(&host_network, &known)[0].contains(" info "), "nobody knows which nodes have it");
    assert_eq!(found(&host_port, &["--node-port-range", "20000-30000"]), NOTHING);
    let own = workload("DaemonSet", "agent", "", &containers("containerPort: 31000"));
    assert_eq!(found(&own, &[]), NOTHING, "a port of the pod's own network");
    let at = |ip: &str| {
        let port = format!("containerPort: 80, hostIP: {ip}, hostPort: 31000");
        found(&workload("DaemonSet", "agent", "", &containers(&port)), &[]).len()
    };
    assert_eq!(["127.0.0.1", "\"::1\"", "0.0.0.0", "192.0.2.1"].map(at), [0, 0, 1, 1]);
}

#[test]
fn several_pods_of_one_workload_cannot_have_one_port_of_a_node() {
    let of = |kind: &str, replicas: &str, port: &str| workload(kind, "web", replicas, &containers(port));
    let port = "containerPort: 80, hostPort: 8080";
    for kind in ["Deployment", "StatefulSet", "ReplicaSet"] {
        let lines = found(&of(kind, "replicas: 3, ", port), &[]);
        assert_eq!(lines, [format!("5:87 info pod-waits-for-port/replicas {kind} default/web 8080/tcp")]);
        assert_eq!(found(&of(kind, "replicas: 1, ", port), &[]), NOTHING);
        assert_eq!(found(&of(kind, "", port), &[]), NOTHING);
        assert_eq!(found(&of(kind, "replicas: 0, ", "containerPort: 80, hostPort: 31000"), &[]), NOTHING);
        assert_eq!(found(&of(kind, "replicas: 3, ", "containerPort: 80"), &[]), NOTHING);
    }
    let job = |spec: &str| found(&of("Job", spec, port), &[]);
    assert_eq!(job("parallelism: 3, "), ["5:90 info pod-waits-for-port/replicas Job default/web 8080/tcp"]);
    assert_eq!(job("parallelism: 3, completions: 1, "), NOTHING);
    assert_eq!(job("completions: 3, "), NOTHING);
    let cron = workload("CronJob", "web", "", &containers(port))
        .replace("{template", "{jobTemplate: {spec: {parallelism: 2, template");
    let lines = found(&cron.replace("}}}\n", "}}}}}\n"), &[]);
    assert!(lines[0].ends_with("info pod-waits-for-port/replicas CronJob default/web 8080/tcp"), "{lines:?}");
    assert_eq!(found(&of("ReplicationController", "replicas: 3, ", port), &[]).len(), 1);
}

#[test]
fn a_port_in_the_ephemeral_range_that_only_a_probe_names_has_its_place() {
    let of = |network: &str, port: u16| {
        let probe = |name: &str, port: u16| format!("{name}: {{tcpSocket: {{port: {port}}}}}");
        let both = format!("{}, {}", probe("livenessProbe", port), probe("readinessProbe", port));
        let pods = format!(
            "hostNetwork: {network}, containers: [{{ports: [{{containerPort: 8300}}], {both}}}, {{{}}}]",
            probe("livenessProbe", 8300)
        );
        found(&workload("DaemonSet", "web", "", &pods), &[])
    };
    let lines = of("true", 45_555);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].ends_with("info ephemeral-range-overlap/workload DaemonSet default/web 45555/tcp"), "{lines:?}");
    assert_eq!(of("true", 24_555), [""; 0], "the kernel does not choose it");
    assert_eq!(of("false", 45_555), [""; 0], "the port is the pod's own");
}

#[test]
fn a_roll_out_that_keeps_the_old_pod_waits_for_its_port() {
    let of = |kind: &str, spec: &str, pods: &str| {
        let pods = format!("{pods}{}", containers("containerPort: 80, hostPort: 8080"));
        let lines = found(&workload(kind, "web", spec, &pods), &[]);
        lines.iter().map(|line| line.split(' ').nth(1).expect("a severity").to_owned()).collect::<Vec<_>>()
    };
    let rolling = |surge: &str, unavailable: &str| {
        format!("replicas: 1, strategy: {{rollingUpdate: {{maxSurge: {surge}, maxUnavailable: {unavailable}}}}}, ")
    };
    let pinned = "nodeSelector: {kubernetes.io/hostname: n1}, ";
    assert_eq!(of("Deployment", "", pinned), ["warning"], "by default");
    assert_eq!(of("Deployment", &rolling("1", "0"), pinned), ["warning"]);
    assert_eq!(of("Deployment", &rolling("10%", "99%"), pinned), ["warning"], "99 % of one pod is none");
    assert_eq!(of("Deployment", "", ""), [""; 0], "another node may be free");
    for silent in [rolling("0", "0"), rolling("0%", "0%"), rolling("1", "1"), rolling("1", "100%")] {
        assert_eq!(of("Deployment", &silent, pinned), [""; 0], "{silent}");
    }
    assert_eq!(of("Deployment", "strategy: {type: Recreate}, ", pinned), [""; 0]);
    assert_eq!(of("StatefulSet", "", pinned), [""; 0], "the old pod goes first");
    let daemons = |surge: &str, unavailable: &str| rolling(surge, unavailable).replace("replicas: 1, s", "updateS");
    for waits in [daemons("1", "0"), daemons("10%", "0%")] {
        assert_eq!(of("DaemonSet", &waits, ""), ["warning"], "{waits}");
    }
    let on_delete = "updateStrategy: {type: OnDelete, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}, ";
    for silent in [String::new(), daemons("0", "1"), daemons("0", "10%"), on_delete.to_owned()] {
        assert_eq!(of("DaemonSet", &silent, ""), [""; 0], "{silent}");
    }
}

#[test]
fn a_port_that_the_kernel_chooses_is_told_of_the_hosts_network_and_of_a_host_port() {
    let host = |port: u16| {
        let pods = format!("hostNetwork: true, {}", containers(&format!("containerPort: {port}")));
        found(&workload("StatefulSet", "servers", "", &pods), &[])
    };
    assert_eq!(host(40_000), ["5:79 info ephemeral-range-overlap/workload StatefulSet default/servers 40000/tcp"]);
    assert_eq!([host(32_767).len(), host(32_768).len(), host(60_999).len(), host(61_000).len()], [1, 1, 1, 0]);
    assert!(host(32_767)[0].contains("listener-on-node-port/latent"), "it is the last NodePort");
    let hosted = workload("DaemonSet", "otel", "", &containers("containerPort: 4317, hostPort: 40317"));
    assert_eq!(found(&hosted, &[]), ["5:76 info ephemeral-range-overlap/workload DaemonSet default/otel 40317/tcp"]);
    let own = workload("DaemonSet", "otel", "", &containers("containerPort: 40317"));
    assert_eq!(found(&own, &[]), NOTHING, "a port of the pod's own network");
}

#[test]
fn ports_of_daemons_are_known() {
    let of = |port: &str| workload("DaemonSet", "agent", "", &format!("hostNetwork: true, {}", containers(port)));
    for (port, severity) in
        [(10250, "warning"), (10256, "info"), (9100, "info"), (6443, "warning"), (10258, "info"), (9962, "info")]
    {
        let lines = found(&of(&format!("containerPort: {port}")), &[]);
        assert_eq!(
            lines,
            [format!("5:79 {severity} host-network-port-taken/daemon DaemonSet default/agent {port}/tcp")]
        );
    }
    assert_eq!(found(&of("containerPort: 9100, protocol: UDP"), &[]), NOTHING);
    assert_eq!(found(&of("containerPort: 9101"), &[]), NOTHING);
    assert_eq!(found(&workload("Deployment", "metrics", "", &containers("containerPort: 10250")), &[]), NOTHING);
}
