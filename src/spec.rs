//! Text in, checked values out: models, accelerators, clusters and jobs.

pub mod cluster;
pub mod job;
pub mod model;
