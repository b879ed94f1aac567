//! What watchers and pollers send to the index.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    cached_object::{CachedObject, ObjectBatch},
    selection::Selection,
};
use crate::error::Error;

/// One update of what is known of a resource.
#[derive(Debug)]
pub enum Update {
    /// The address of the server that was connected to.
    Connected(String),
    /// Every object of a selection.
    Replaced(Selection, ObjectBatch),
    /// The object of a title as it is now; `None` where no rule uses it, or it was deleted.
    Applied(String, Option<CachedObject>),
    /// The names of the Services whose endpoints are needed from now on.
    EndpointsNeeded(Arc<BTreeSet<String>>),
    /// The server is there, and nothing has changed.
    Confirmed,
    /// The resource could not be read.
    Failed(Error),
}
