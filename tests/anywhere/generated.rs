//! Documents that are made of tests: `make docs` writes them anew.

mod comments;
mod faults;
mod threads;
mod worlds;
