//! Portreeve has an answer to a public thread if the output names the conflict or claim, its owner, and a remedy. The
//! test of the thread checks the output.

use std::process::{ExitCode, Termination};

use serde_json::Value;

/// Proof that a test found a conflict, its owner and a remedy. Only the methods of [`Named`] make this value.
pub(super) struct Served(Named);

impl Termination for Served {
    fn report(self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

impl Served {
    #[track_caller]
    pub(super) fn types(self, words: &str) -> Self {
        self.0.types(words)
    }

    #[track_caller]
    pub(super) fn advises(self, words: &str) -> Self {
        self.0.advises(words)
    }
}

/// A conflict or a claim whose owner the output names.
pub(super) struct Named {
    evidence: Value,
    steps: Vec<Value>,
}

impl Named {
    /// Checks that a finding names the owner, in its summary or in a measured value. The owner must contain a name in
    /// `somebody`, or be the name of a measured setting.
    pub(super) fn of_finding(finding: &Value, owner: &str, somebody: &[String]) -> Result<Self, String> {
        let (summary, evidence) = (finding["summary"].as_str().expect("a sentence"), &finding["evidence"]);
        let values: Vec<&Value> = evidence.as_array().expect("a list").iter().collect();
        let holds = |it: &&Value| it["value"].as_str().is_some_and(|value| value.contains(owner));
        let is_setting = values.iter().any(|it| it["name"] == owner);
        if !(summary.contains(owner) || values.iter().any(holds) || is_setting) {
            return Err(format!("{owner:?} is not in: {summary} {evidence}"));
        }
        if !(is_setting || somebody.iter().any(|name| owner.contains(name))) {
            return Err(format!("{owner:?} names nobody of {somebody:?}, and no setting of {evidence}"));
        }
        Ok(Self { evidence: evidence.clone(), steps: steps(&finding["remedies"]) })
    }

    #[track_caller]
    pub(super) fn types(self, words: &str) -> Served {
        self.remedy("command", words).unwrap_or_else(|why| panic!("{why}"))
    }

    #[track_caller]
    pub(super) fn advises(self, words: &str) -> Served {
        self.remedy("advice", words).unwrap_or_else(|why| panic!("{why}"))
    }

    #[track_caller]
    pub(super) fn shows(self, name: &str, words: &str) -> Self {
        let values = self.evidence.as_array().expect("a list").iter().filter(|it| it["name"] == name);
        let mut values = values.filter_map(|it| it["value"].as_str());
        assert!(values.any(|value| value.contains(words)), "{name} {words:?} is not in {}", self.evidence);
        self
    }

    fn remedy(self, kind: &str, words: &str) -> Result<Served, String> {
        let mut texts = self.steps.iter().filter(|step| step["kind"] == kind).filter_map(|step| step["text"].as_str());
        match texts.any(|text| text.contains(words)) {
            true => Ok(Served(self)),
            false => Err(format!("no {kind} {words:?} in {:?}", self.steps)),
        }
    }
}

pub(super) struct Answer {
    /// The output as text for people, in one line.
    text: String,
    document: Value,
}

impl Answer {
    pub(super) fn new(text: String, document: Value) -> Self {
        Self { text, document }
    }

    #[track_caller]
    pub(super) fn says(self, words: &str) -> Self {
        assert!(self.text.contains(words), "{words:?} is not in: {}", self.text);
        self
    }

    /// Checks that the output shows the claim and its owner, such as `node-port` and `Service default/web port http`.
    /// If no claim on this node matches, the advice must name the owner and the claim, such as `Service default/web`
    /// and `healthCheckNodePort`.
    #[track_caller]
    pub(super) fn names(self, claim: &str, owner: &str) -> Named {
        self.named(claim, owner).unwrap_or_else(|why| panic!("{why}"))
    }

    fn named(&self, claim: &str, owner: &str) -> Result<Named, String> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut claimants =
            list(&self.document["nodes"][0]["protocols"]).into_iter().flat_map(|it| list(&it["claimants"]));
        let has = |it: &Value, field: &str, words: &str| it[field].as_str().is_some_and(|text| text.contains(words));
        let is_claimed = claimants.any(|it| it["claim"] == claim && has(&it, "name", owner));
        let advice = list(&self.document["nodes"][0]["advice"]);
        let has_number = advice.iter().any(|it| has(it, "case", &format!("{owner} has it as {claim}")));
        if !(is_claimed || has_number) {
            return Err(format!("no {claim} of {owner}: {}", self.text));
        }
        Ok(Named { evidence: Value::Null, steps: advice.iter().flat_map(|it| steps(&it["remedies"])).collect() })
    }
}

fn steps(remedies: &Value) -> Vec<Value> {
    let remedies = remedies.as_array().expect("remedies").iter();
    remedies.filter_map(|remedy| remedy["steps"].as_array()).flatten().cloned().collect()
}

#[test]
fn a_finding_serves_nobody_without_an_owner_and_a_remedy() {
    let somebody = ["default/web".to_owned()];
    let named = |summary: &str, owner: &str| {
        let step = serde_json::json!({"kind": "advice", "text": "move it"});
        let remedies = serde_json::json!([{"steps": [step]}]);
        let evidence = serde_json::json!([{"name": "a_setting", "value": "1"}]);
        let finding = serde_json::json!({"summary": summary, "evidence": evidence, "remedies": remedies});
        Named::of_finding(&finding, owner, &somebody)
    };
    assert!(named("default/web has it", "default/web").is_ok_and(|it| it.remedy("advice", "move").is_ok()));
    assert!(named("default/web has it", "default/web").is_ok_and(|it| it.remedy("command", "").is_err()));
    assert!(named("it is nearly full", "a_setting").is_ok());
    assert!(named("it is nearly full", "nearly full").is_err(), "it names nobody");
    assert!(named("default/other has it", "default/web").is_err(), "another has it");
}

#[test]
fn an_answer_serves_nobody_without_the_owner_and_what_to_do() {
    let claimant = serde_json::json!({"claim": "node-port", "name": "Service default/web", "detail": ""});
    let advice = serde_json::json!([{"case": "Service default/db has it as healthCheckNodePort", "remedies": []}]);
    let document = serde_json::json!({"nodes": [{"protocols": [{"claimants": [claimant]}], "advice": advice}]});
    let answer = Answer::new(String::new(), document);
    assert!(answer.named("node-port", "Service default/web").is_ok_and(|it| it.remedy("advice", "").is_err()));
    assert!(answer.named("healthCheckNodePort", "Service default/db").is_ok());
    assert!(answer.named("node-port", "Service default/db").is_err());
    assert!(answer.named("host-port", "Service default/web").is_err());
}
