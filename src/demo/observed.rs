//! Reads the findings that `portreeve check` printed in the demo, and compares them with the expected findings.

use serde::Deserialize;

use super::incident::Expected;
use portreeve_report::{Problem, Unknown};

/// The fields of a `portreeve.findings/v1` document that the demo uses.
#[derive(Debug, Deserialize)]
pub(super) struct ObservedReport {
    /// The findings, worst first.
    pub(super) findings: Vec<Problem>,
    unknown: Vec<Unknown>,
}

impl ObservedReport {
    pub(super) fn find(&self, expected: &Expected) -> Option<&Problem> {
        self.findings.iter().find(|found| is(found, expected))
    }

    pub(super) fn why_unknown(&self, rule: &str) -> Option<&str> {
        let (id, variant) = rule.split_once('/')?;
        let is_it = |gap: &&Unknown| gap.rule.as_deref() == Some(id) && gap.variants.iter().any(|it| it == variant);
        self.unknown.iter().find(is_it).map(|gap| gap.detail.as_str())
    }
}

pub(super) fn is(found: &Problem, expected: &Expected) -> bool {
    let Expected { rule, severity, subject, port, evidence } = expected;
    found.name() == *rule
        && found.severity == *severity
        && found.subject.to_string() == *subject
        && found.port == *port
        && evidence.iter().all(|(name, value)| {
            found.evidence.iter().any(|measured| measured.name == *name && measured.value.starts_with(value))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_rules::findings::Severity;

    const DOCUMENT: &str = r#"{"schema":"portreeve.findings/v1","findings":[{
        "rule":"listener-on-node-port","variant":"loses","severity":"critical","scope":"node","port":30080,"protocol":"tcp",
        "subject":{"kind":"Service","namespace":"default","name":"web","uid":"u"},"summary":"s",
        "evidence":[{"name":"listener","value":"tcp LISTEN 0.0.0.0:30080"}],"affects":["remote"],"remedy":["move it"],
        "remedies":[]}],
        "unknown":[{"rule":"stale-redirection","variants":["proxy"],"source":"netfilter","why":"not-permitted",
        "detail":"no NET_ADMIN"}]}"#;

    const EXPECTED: Expected = Expected {
        rule: "listener-on-node-port/loses",
        severity: Severity::Critical,
        subject: "Service default/web",
        port: Some(30080),
        evidence: &[("listener", "tcp LISTEN")],
    };

    #[test]
    fn a_finding_counts_only_when_everything_expected_of_it_is_there() {
        let look: ObservedReport = serde_json::from_str(DOCUMENT).expect("a document");
        assert!(look.find(&EXPECTED).is_some());
        for wrong in [
            Expected { rule: "listener-on-node-port/trap", ..EXPECTED },
            Expected { severity: Severity::Warning, ..EXPECTED },
            Expected { subject: "Service default/batch", ..EXPECTED },
            Expected { port: Some(30081), ..EXPECTED },
            Expected { evidence: &[("listener", "udp")], ..EXPECTED },
            Expected { evidence: &[("listener", "tcp"), ("address", "")], ..EXPECTED },
        ] {
            assert!(look.find(&wrong).is_none(), "{} {}", wrong.rule, wrong.subject);
        }
    }

    #[test]
    fn what_could_not_be_told_says_why() {
        let look: ObservedReport = serde_json::from_str(DOCUMENT).expect("a document");
        assert_eq!(look.why_unknown("stale-redirection/proxy"), Some("no NET_ADMIN"));
        assert_eq!(look.why_unknown("stale-redirection/host-port"), None);
    }
}
