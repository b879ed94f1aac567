//! The messages of watchers and pollers to the index.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    cached_object::{CachedObject, ObjectBatch},
    selection::Selection,
};
use crate::error::Error;

/// One update of the known state of a resource.
#[derive(Debug)]
pub enum Update {
    /// The address of the connected server.
    Connected(String),
    /// Every object of a selection.
    Replaced(Selection, ObjectBatch),
    /// The new state of the object with a title; `None` if no rule uses the object, or it was deleted.
    Applied(String, Option<CachedObject>),
    /// The names of the Services whose endpoints are needed from now on.
    EndpointsNeeded(Arc<BTreeSet<String>>),
    /// The server answered, and nothing has changed.
    Confirmed,
    /// The resource could not be read.
    Failed(Error),
}
