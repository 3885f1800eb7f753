//! Integration tests, one module per topic.

mod money;
