//! The uid of an object.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `metadata.uid`, as the API server wrote it. A cluster may have many objects, so a UUID is stored in 16 bytes instead
/// of as a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Uid {
    /// A UUID in the form that the API server writes.
    Uuid(Uuid),
    /// Any other text, from a file.
    Text(Box<str>),
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        // A UUID can be written in several forms. Only the API server's form is stored as a UUID.
        let uuid = Uuid::try_parse(&text).ok().filter(|uuid| uuid.to_string() == text);
        uuid.map_or_else(|| Self::Text(text.into()), Self::Uuid)
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.to_string()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}
