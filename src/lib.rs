pub mod cluster;
pub mod facts;
