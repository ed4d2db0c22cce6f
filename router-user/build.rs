//! Embeds the eBPF object, which another compiler builds for another target. A missing or stale one
//! ends the build with the way to make it.

use std::{env, fs, path::Path};

#[path = "../router-ebpf/source_digest.rs"]
mod source_digest;

use source_digest::{OBJECT, SOURCES, source_digest};

fn main() {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the manifest's folder");
    let root = Path::new(&manifest).parent().expect("the crate is in the workspace's folder");
    let object = root.join(OBJECT);
    let record = object.with_extension("sources");
    for path in SOURCES.map(|source| root.join(source)).iter().chain([&object, &record]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }

    let built_from = fs::read_to_string(&record).unwrap_or_default();
    let problem = if !object.exists() {
        Some("is missing")
    } else if source_digest(root).ok().is_none_or(|digest| digest != built_from.trim()) {
        Some("is older than its sources")
    } else {
        None
    };
    if let Some(problem) = problem {
        println!("cargo::error=the eBPF object {OBJECT} {problem}: run `cargo xtask build-ebpf`");
    }
    println!("cargo::rustc-env=ILB_EBPF_OBJECT={}", object.display());
}
