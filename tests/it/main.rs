//! Integration tests, one module per topic.

mod frameworks;
mod models;
mod money;
mod reference_facts;
mod specs;
mod stages;
