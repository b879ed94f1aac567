//! Some documents are generated from tests: `make docs` writes these documents.

mod comments;
mod faults;
mod threads;
mod worlds;
