//! The rules for names in Kubernetes (k8s.io/apimachinery/pkg/util/validation). A valid name does not begin with `-`,
//! so it cannot be an option of a command.

use super::text;

/// The longest label, in bytes (RFC 1123).
const LABEL: usize = 63;

/// The form of a name, in words for users.
pub const SUBDOMAIN: &str =
    "a name of the characters a to z, 0 to 9, - and . that begins and ends with a letter or a digit";
/// The form of the name of a Service or a namespace, in words for users.
pub const LABEL_WORDS: &str =
    "a name of at most 63 characters a to z, 0 to 9 and - that begins and ends with a letter or a digit";

/// Whether a text is a DNS subdomain. Names of Pods, Nodes and most other objects have this form.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= text::NAME && name.split('.').all(is_part)
}

/// Whether a text is a DNS label. Names of namespaces and Services have this form. With `RelaxedServiceNameValidation`,
/// the name of a Service may begin with a digit.
pub fn is_label(name: &str) -> bool {
    name.len() <= LABEL && is_part(name)
}

fn is_part(part: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
        && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_the_api_server_takes() {
        for good in ["a", "web-1", "0", "a--b"] {
            assert!(is_label(good) && is_subdomain(good), "{good}");
        }
        for wrong in ["", "-", "--all", "-f", "a-", "A", "a_b", "a b", "a\u{200b}", "ä", "a/b", &"a".repeat(64)] {
            assert!(!is_label(wrong), "{wrong}");
        }
        assert!(is_subdomain("n1.example.com") && !is_label("n1.example.com"));
        for wrong in ["", ".", "a..b", "-a.b", "a.b-", &"a.".repeat(127)] {
            assert!(!is_subdomain(wrong), "{wrong}");
        }
    }
}
