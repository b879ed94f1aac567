//! The roles of the chart, as in `deploy/install.yaml` or with other values.

use std::process::Command;

use serde_json::{Value, json};

use super::{api::Api, commands::run, control_plane::ControlPlane, programs};

const MANIFEST: &str = include_str!("../../../deploy/install.yaml");

/// The rights of a role. A test grants these rights to the user `observer`.
pub struct Role(Vec<Value>);

impl Role {
    /// All rights that `kubectl apply -f deploy/install.yaml` grants.
    pub fn of_chart() -> Self {
        Self::of(MANIFEST)
    }

    #[track_caller]
    pub fn of_chart_with(value: &str) -> Self {
        let mut helm = Command::new(programs::find("helm"));
        helm.args(["template", "portreeve", "deploy/chart", "--namespace=portreeve", "--set", value]);
        helm.args(["--set", "image.repository=registry.example/portreeve"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        Self::of(&run(&mut helm).unwrap_or_else(|complaint| panic!("{value}: {complaint}")))
    }

    fn of(manifest: &str) -> Self {
        let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).expect("a manifest is YAML");
        let is_role = |object: &Value| object.get("rules").is_some() || object.get("roleRef").is_some();
        Self(objects.into_iter().filter(is_role).collect())
    }

    #[track_caller]
    pub fn without(mut self, what: &str) -> Self {
        let mut taken = 0;
        for rules in self.0.iter_mut().filter_map(|object| object.get_mut("rules")?.as_array_mut()) {
            let before = rules.len();
            rules.retain(|rule| places(rule) != [what]);
            taken += before - rules.len();
        }
        assert_eq!(taken, 1, "{what} has a rule of its own");
        self
    }

    /// Binds the role to `observer`, and waits until all rights of the role are in force.
    #[track_caller]
    pub fn grant(&self, cluster: &mut ControlPlane) {
        for object in &self.0 {
            let mut object = object.clone();
            if object.get("roleRef").is_some() {
                object["subjects"] =
                    json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "observer"}]);
            }
            cluster.api().create(&object);
        }
        let observer = Api::of(&cluster.kubeconfig("observer")).expect("a kubeconfig");
        for object in &self.0 {
            for review in object["rules"].as_array().into_iter().flatten().flat_map(|rule| reviews(object, rule)) {
                cluster.wait_for("role in force", || {
                    let allowed = &observer.create(&review)["status"]["allowed"];
                    (*allowed == json!(true)).then_some(())
                });
            }
        }
    }
}

fn places(rule: &Value) -> Vec<&str> {
    let places = rule.get("resources").or(rule.get("nonResourceURLs"));
    places.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn reviews(role: &Value, rule: &Value) -> Vec<Value> {
    let verbs = rule["verbs"].as_array().expect("verbs").iter();
    let question = |verb: &Value, place: &str| match place.starts_with('/') {
        true => json!({"nonResourceAttributes": {"path": place, "verb": verb}}),
        false => json!({"resourceAttributes": {
            "namespace": role["metadata"]["namespace"],
            "group": rule["apiGroups"][0],
            "resource": place,
            "name": rule["resourceNames"][0],
            "verb": verb,
        }}),
    };
    let specs = verbs.flat_map(|verb| places(rule).into_iter().map(move |place| question(verb, place)));
    let kind = ("authorization.k8s.io/v1", "SelfSubjectAccessReview");
    specs.map(|spec| json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {}, "spec": spec})).collect()
}
