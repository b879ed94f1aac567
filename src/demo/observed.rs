//! The document that an observer printed, and the comparison with the expected findings.

use serde::Deserialize;

use super::incident::Expected;
use portreeve_rules::findings::Severity;

/// The part of a `portreeve.findings/v1` document that matters here.
#[derive(Debug, Deserialize)]
pub(super) struct ObservedReport {
    /// The findings, worst first.
    pub(super) findings: Vec<ObservedFinding>,
    unknown: Vec<ObservedGap>,
}

/// One finding.
#[derive(Debug, Deserialize)]
pub(super) struct ObservedFinding {
    rule: String,
    variant: String,
    /// The observed finding's severity.
    pub(super) severity: Severity,
    subject: Subject,
    port: Option<u16>,
    /// The observed finding's sentence.
    pub(super) summary: String,
    evidence: Vec<Measured>,
    /// The remedy.
    pub(super) remedy: Vec<String>,
}

/// An unread input or an unjudged rule.
#[derive(Debug, Deserialize)]
struct ObservedGap {
    rule: Option<String>,
    #[serde(default)]
    variants: Vec<String>,
    detail: String,
}

#[derive(Debug, Deserialize)]
struct Subject {
    kind: String,
    namespace: Option<String>,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Measured {
    name: String,
    value: String,
}

impl ObservedReport {
    /// The finding that was expected.
    pub(super) fn find(&self, expected: &Expected) -> Option<&ObservedFinding> {
        self.findings.iter().find(|found| found.is(expected))
    }

    /// Why a rule has no answer.
    pub(super) fn why_unknown(&self, rule: &str) -> Option<&str> {
        let (id, variant) = rule.split_once('/')?;
        let is_it = |gap: &&ObservedGap| gap.rule.as_deref() == Some(id) && gap.variants.iter().any(|it| it == variant);
        self.unknown.iter().find(is_it).map(|gap| gap.detail.as_str())
    }
}

impl ObservedFinding {
    /// Whether this finding is the expected finding.
    pub(super) fn is(&self, expected: &Expected) -> bool {
        let Expected { rule, severity, subject, port, evidence } = expected;
        self.name() == *rule
            && self.severity == *severity
            && self.subject() == *subject
            && self.port == *port
            && evidence.iter().all(|(name, value)| {
                self.evidence.iter().any(|measured| measured.name == *name && measured.value.starts_with(value))
            })
    }

    /// `node-port-claimed-twice/lost`
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.rule, self.variant)
    }

    /// `Service default/web`, `Node n1`.
    pub(super) fn subject(&self) -> String {
        let Subject { kind, namespace, name } = &self.subject;
        match namespace {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"schema":"portreeve.findings/v1","findings":[{
        "rule":"listener-on-node-port","variant":"loses","severity":"critical","port":30080,"protocol":"tcp",
        "subject":{"kind":"Service","namespace":"default","name":"web","uid":"u"},"summary":"s",
        "evidence":[{"name":"listener","value":"tcp LISTEN 0.0.0.0:30080"}],"affects":["remote"],"remedy":["move it"]}],
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
