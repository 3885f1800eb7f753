//! Training frameworks: what each can express, how it behaves at run time, how it is written and read.

pub mod profile;
