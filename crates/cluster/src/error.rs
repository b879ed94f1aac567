//! The errors that can occur when Portreeve reads the cluster.

use std::{io, time::Duration};

use portreeve_facts::{Gap, Source, Why, text};

/// The value of `what` in most errors of the kind `TimedOut`.
pub const NO_ANSWER: &str = "no answer";
const WANTED: &str = "the output of kubectl get -o yaml or -o json";
const DETAIL: usize = 512;
/// The time to wait before the next request, if an answer was too large.
const TOO_MUCH: Duration = Duration::from_secs(120);

/// A source that could not be read, or could be read only in part. The text of each variant explains its fields.
#[allow(missing_docs, reason = "the texts explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be opened or read.
    #[error("{place}: cannot be read: {source}; wanted a file with {WANTED}")]
    Unreadable { place: String, source: io::Error },
    /// A file without objects.
    #[error("{place}: is empty, wanted {WANTED}")]
    Empty { place: String },
    /// A file in UTF-16. The shell of Windows writes redirected output in UTF-16.
    #[error("{place}: is UTF-16, wanted UTF-8")]
    Utf16 { place: String },
    /// A document that is malformed from this position on.
    #[error("{place}:{line}:{column}: {what}; wanted {WANTED}")]
    Malformed { place: String, line: u64, column: u64, what: String },
    /// A document that ends too early.
    #[error(
        "{place}: ends before the kind of its List: the file was cut, and its last item is not used; wanted {WANTED}"
    )]
    Cut { place: String },
    /// A List with a reference to a next page.
    #[error("{place}: has a page of a longer List, without the other pages; wanted {WANTED}")]
    Page { place: String },
    /// A List without items, or without a kind.
    #[error("{place}: has a List without items or without a kind, like a file that was cut; wanted {WANTED}")]
    Hollow { place: String },
    /// A file that was read only up to `line`, because it exceeds a limit, or because a read failed.
    #[error("{place}: line {line}: {what}")]
    Beyond { place: String, line: u64, why: Why, what: String },
    /// A kubeconfig that cannot be used, or files of a service account that cannot be used.
    #[error("{place}: {what}")]
    Credentials { place: String, what: String },
    /// An answer other than 200.
    #[error("{request}: {code}: {message}")]
    Status { request: String, code: u16, message: String, retry_after: Option<Duration> },
    /// An answer without the expected object.
    #[error("{request}: the answer ({content}) does not match the request: {what}")]
    Answer { request: String, content: String, what: String },
    /// An answer with more bytes than the limit.
    #[error("{request}: the answer ({content}) does not match the request: it is longer than {most} bytes")]
    TooLong { request: String, content: String, most: usize },
    /// An answer that is larger than the memory for it.
    #[error("{request}: {what}")]
    TooMuch { request: String, what: String },
    /// An answer that did not arrive, or did not arrive in full, within `limit`.
    #[error("{request}: {what} within {} s", .limit.as_secs_f32())]
    TimedOut { request: String, what: &'static str, limit: Duration },
    /// A connection that could not be made, or that broke.
    #[error("{request}: {what}")]
    Unreachable { request: String, what: String },
}

impl Error {
    /// The kind of failure.
    pub fn why(&self) -> Why {
        match self {
            Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Why::NotPermitted,
            Self::Status { code: 401 | 403, .. } => Why::NotPermitted,
            Self::Status { code: 404..=406, .. } => Why::NotSupported,
            Self::Status { code: 408 | 504, .. } | Self::TimedOut { .. } => Why::TimedOut,
            Self::Status { code: 410, .. } => Why::Stale,
            Self::Status { code: 400..=428, .. }
            | Self::Empty { .. }
            | Self::Hollow { .. }
            | Self::Utf16 { .. }
            | Self::Malformed { .. }
            | Self::Cut { .. }
            | Self::Page { .. }
            | Self::Answer { .. }
            | Self::TooLong { .. } => Why::Malformed,
            Self::TooMuch { .. } => Why::TooMuch,
            Self::Beyond { why, .. } => *why,
            Self::Unreadable { .. } | Self::Credentials { .. } | Self::Status { .. } | Self::Unreachable { .. } => {
                Why::Unreachable
            }
        }
    }

    /// The failure as a word for counters. The word is the status code, or a word from a closed list.
    pub fn code(&self) -> String {
        match self {
            Self::Status { code: code @ (400 | 401 | 403 | 404 | 408 | 410 | 429 | 500..=504), .. } => code.to_string(),
            Self::Status { code, .. } => format!("{}xx", (code / 100).clamp(1, 5)),
            Self::TimedOut { .. } => "timed-out".to_owned(),
            Self::Unreachable { .. } => "unreachable".to_owned(),
            Self::Credentials { .. } => "credentials".to_owned(),
            Self::TooMuch { .. } => "too-much".to_owned(),
            _ => "malformed".to_owned(),
        }
    }

    /// The time to wait before the next request. After an answer that was too large, an immediate request would get the
    /// same answer, and would only cost the server another list.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::TooMuch { .. } => Some(TOO_MUCH),
            _ => None,
        }
    }

    /// The failure as the `Gap` of a fact. The text may quote a server or a file, so it is cleaned here.
    pub fn gap(&self, source: Source) -> Gap {
        Gap::new(source, self.why(), text::clean(&self.to_string(), DETAIL))
    }
}

/// An error with its causes. Each text is listed once.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // Removes the prefix `ServiceError: ` of the library kube, because this prefix does not help users.
    text.strip_prefix("ServiceError: ").map(str::to_owned).unwrap_or(text)
}
