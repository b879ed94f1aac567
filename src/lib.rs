pub mod facts;
pub mod kernel;
