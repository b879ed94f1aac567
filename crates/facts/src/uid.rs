//! The uid of an object.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `metadata.uid`, as the API server wrote it. A cluster has many objects: a UUID takes 16 bytes instead of its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Uid {
    /// As the API server makes it.
    Uuid(Uuid),
    /// Any other text, from a file.
    Text(Box<str>),
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        // A UUID has several forms.
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
