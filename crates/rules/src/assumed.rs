//! Adds to a verdict the assumptions that replace unread settings of the proxy.

use crate::findings::{Evidence, Severity, Vantage, Verdict};
use portreeve_dataplane::Stratum;
use portreeve_facts::Gap;

/// Adds the assumed settings to the evidence of a problem. A problem on only some addresses becomes at most a warning,
/// because the real settings may not serve these addresses. A problem on all addresses keeps its severity.
pub(super) fn assuming(stratum: Stratum, everywhere: bool, verdict: Verdict) -> Verdict {
    match (verdict, stratum.in_words()) {
        (Verdict::Problem(evidence), Some(words)) => {
            let mut evidence = evidence.value("assumed", words);
            if stratum == Stratum::Defaults && !everywhere {
                evidence.severity = evidence.severity.min(Severity::Warning);
            }
            Verdict::Problem(evidence)
        }
        (verdict, _) => verdict,
    }
}

/// Adds `more` to the evidence: an unread input that may hide more losses. If connections from outside are lost, `more`
/// is left out, because no loss is larger.
pub(super) fn at_least(evidence: Evidence, more: Option<&Gap>) -> Evidence {
    let more = more.filter(|_| !evidence.affects.contains(&Vantage::Remote));
    evidence.each("other connections", more.map(|gap| format!("unknown: {}", gap.detail)))
}
