//! What was assumed for a verdict, where the proxy's settings were not read.

use crate::findings::{Severity, Verdict};
use portreeve_dataplane::Stratum;

/// A verdict with what was assumed for it. Of who is asked at some addresses only, it is a warning at most where settings are assumed:
/// who is asked at all of them is so at one that is served.
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
