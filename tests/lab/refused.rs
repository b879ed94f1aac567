//! The real kubelet refuses a pod that names its node in the spec, because another pod there has the same hostPort.

use crate::parts::named::is_of;
use serde_json::{Value, json};

use crate::{
    look::Look,
    parts::{WholeNode, kubectl, objects, until},
};

const RULE: &str = "pod-waits-for-port/pod";

#[test]
fn a_pod_that_the_kubelet_refuses_for_its_port_is_told_with_the_one_that_has_it() {
    let node = WholeNode::start();
    until("service account", || node.read("/api/v1/namespaces/default/serviceaccounts/default"));
    let status = |name: &str| -> Option<Value> {
        node.read(&format!("/api/v1/namespaces/default/pods/{name}")).map(|pod| pod["status"].clone())
    };
    let look = || {
        let look = Look::check_with(&["--rule", RULE], &node.cluster.kubeconfig("admin"));
        assert!(!look.unknown().iter().any(|it| is_of(it, RULE)), "{:#}", look.json);
        look.findings(RULE).into_iter().cloned().collect::<Vec<_>>()
    };
    // These images do not exist: the kubelet admits or refuses a pod before it reads the image.
    node.cluster.api().create(&objects::host_port_pod("first", "TCP", 8081, None));
    until("first pod", || status("first").filter(|it| it["containerStatuses"].is_array()));
    node.cluster.api().create(&objects::host_port_pod("other", "UDP", 8081, None));
    until("other pod", || status("other").filter(|it| it["containerStatuses"].is_array()));
    assert_eq!(look(), [Value::Null; 0]);

    node.cluster.api().create(&objects::host_port_pod("second", "TCP", 8081, None));
    let refused = until("refusal", || status("second").filter(|it| it["phase"] == "Failed"));
    assert_eq!(refused["reason"], "NodePorts", "{refused:#}");
    let [finding] = &look()[..] else { panic!("{:#?}", look()) };
    assert_eq!((&finding["subject"]["name"], &finding["port"]), (&json!("second"), &json!(8081)));
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains("refused by the kubelet") && evidence.contains("pod default/first on n1"), "{evidence}");
    kubectl(&node.cluster, &["delete", "pod", "second", "--force", "--grace-period=0"]);
    assert_eq!(look(), [Value::Null; 0]);
}
