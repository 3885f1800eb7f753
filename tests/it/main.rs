//! Integration tests, one module per topic.

mod accuracy;
mod calibrate;
mod changes;
mod check;
mod cli;
mod experts;
mod frameworks;
mod frameworks_cases;
mod frameworks_export;
mod frameworks_import;
mod hf;
mod measured;
mod models;
mod money;
mod reference_facts;
mod regress;
mod search;
mod specs;
mod stages;
mod survey;
