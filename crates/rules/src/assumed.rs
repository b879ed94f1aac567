//! What holds though the proxy's settings were not read, and what was assumed for that.

use crate::findings::{Severity, Verdict};
use portreeve_dataplane::Stratum;

const DEFAULTS: &str = "that the proxy's settings are at their defaults";
const SERVED: &str = "that nodePortAddresses has an address of this node";

/// A verdict with what was assumed for it. Of who is asked at some addresses only, it is a warning at most where settings are assumed:
/// who is asked at all of them is so at one that is served.
pub(super) fn assuming(stratum: Stratum, everywhere: bool, verdict: Verdict) -> Verdict {
    let (Stratum::Defaults | Stratum::Served, Verdict::Problem(evidence)) = (stratum, &verdict) else { return verdict };
    let words = if stratum == Stratum::Defaults { DEFAULTS } else { SERVED };
    let mut evidence = evidence.clone().value("assumed", words);
    if stratum == Stratum::Defaults && !everywhere {
        evidence.severity = evidence.severity.min(Severity::Warning);
    }
    Verdict::Problem(evidence)
}
