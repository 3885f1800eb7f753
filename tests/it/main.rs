//! Integration tests, one module per topic.

mod frameworks;
mod money;
mod specs;
