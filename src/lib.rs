//! Finds the best parallel layout for training a large language model on a given cluster.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod candidates;
pub mod check;
pub mod cli;
pub mod cost;
pub mod explain;
pub mod frameworks;
mod kept;
pub mod layers;
pub mod memory;
pub mod plan;
pub mod planner;
pub mod regress;
pub mod results;
pub mod search;
pub mod spec;
pub mod stages;
pub mod survey;
pub mod units;
pub mod validate;
