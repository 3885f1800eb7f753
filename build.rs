//! Rebuilds the crate when a shipped specification is added or removed: `include_dir` follows only the
//! files that were there.

fn main() {
    println!("cargo::rerun-if-changed=models");
    println!("cargo::rerun-if-changed=clusters");
    println!("cargo::rerun-if-changed=src/frameworks/profiles");
}
