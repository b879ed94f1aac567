//! What watchers and pollers send to the index.

use std::{collections::BTreeSet, sync::Arc};

use super::{cached_object::ObjectBatch, selection::Selection};
use crate::error::Error;

/// One update of what is known of a resource.
#[derive(Debug)]
pub enum Update {
    /// The address of the server that was connected to.
    Connected(String),
    /// Every object of a selection.
    Replaced(Selection, ObjectBatch),
    /// One object as it is now.
    Applied(ObjectBatch),
    /// An object that was deleted, by its `namespace/name`.
    Deleted(String),
    /// The names of the Services whose endpoints are needed from now on.
    EndpointsNeeded(Arc<BTreeSet<String>>),
    /// The server is there, and nothing has changed.
    Confirmed,
    /// The resource could not be read.
    Failed(Error),
}
