//! Scores the cost model on measured runs.

pub mod case;
