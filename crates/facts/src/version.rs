//! Versions of Kubernetes' programs.

/// Major, minor and patch of `v1.36.3+k3s1`. `None` where the text is not a version.
pub fn kubernetes_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}
