//! Documents that are generated from tests: `make docs` writes them.

mod comments;
mod faults;
mod threads;
mod worlds;
