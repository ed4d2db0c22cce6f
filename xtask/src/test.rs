//! Runs the tests, in two tiers: the fast one, which needs nothing but the compiler, and the whole.

use std::{env, path::Path, process::Command};

use anyhow::bail;
use clap::Args;

use crate::{
    build_ebpf,
    command::{command, is_root, run},
    fuzz, setup,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Run only the tests that need no root, no etcd, no Python and no download, and take two
    /// minutes at most once they are built.
    #[arg(long)]
    fast: bool,
    /// Passed on to `cargo test`, for instance a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Set where a kernel test that cannot run is a failure, not a skip.
const KERNEL_TESTS_REQUIRED: &str = "ILB_KERNEL_TESTS_REQUIRED";
/// Seconds that each fuzz target searches: enough to find what a change has just broken, near the
/// kept inputs.
const FUZZ_SECONDS: u64 = 5;

/// What the fast tier leaves out of router-user's tests, by the beginning of their names, and why.
const NOT_FAST: &[(&str, &str)] = &[
    ("store::canary", "etcd, and trials that last periods"),
    ("store::contract", "etcd"),
    ("store::etcd", "etcd"),
    ("store::faults", "etcd"),
    ("store::standby", "etcd"),
    ("store::takeover", "etcd, and leases that run out"),
];
/// The fast tier's tests of the bench; the others start whole fleets, or Python.
const FAST_OF_BENCH: [&str; 4] = ["--package", "bench", "--lib", "--bins"];

pub(crate) fn test(root: &Path, options: &Options) -> anyhow::Result<()> {
    if options.fast {
        return fast(root, options);
    }
    setup::ensure()?;
    build_ebpf::build_ebpf(root)?;
    whole(root, options)
}

/// The fast tier. Its programs are those of the whole tier, so that neither builds what the other
/// has built.
fn fast(root: &Path, options: &Options) -> anyhow::Result<()> {
    if !options.arguments.is_empty() {
        bail!("--fast takes no arguments; wanted `cargo xtask test NAME`, or one of the two");
    }
    build_ebpf::build_ebpf(root)?;
    let everywhere = ["test", "--release", "--package", "router-common", "--package", "fuzz", "--package", "xtask"];
    let product = ["test", "--release", "--package", "router-user", "--lib", "--bins", "--test", "it", "--"];
    let skipped = NOT_FAST.iter().flat_map(|(name, _)| ["--skip", name]);
    let bench = [&["test", "--release"][..], &FAST_OF_BENCH].concat();
    // All of them run whatever came of the others: one run tells everything.
    let outcomes = [run(&mut cargo(root, &everywhere)), run(cargo(root, &product).args(skipped)), run(&mut cargo(root, &bench))];
    outcomes.into_iter().collect()
}

fn whole(root: &Path, options: &Options) -> anyhow::Result<()> {
    // The release profile alone: HiGHS is compiled once per profile, and takes minutes.
    let everywhere = run(cargo(root, &["test", "--release", "--workspace"]).args(&options.arguments));
    let mut kernel = cargo(root, &["test", "--release", "--package", "router-user", "--test", "netns"]);
    if is_root() || env::var("CI").is_ok_and(|value| value == "true") {
        kernel.env(KERNEL_TESTS_REQUIRED, "1");
    }
    // The kernel tests and the fuzz targets run whatever came of the others: one run tells
    // everything.
    let kernel = run(kernel.args(&options.arguments));
    let fuzzed = if options.arguments.is_empty() { fuzz::all(root, FUZZ_SECONDS) } else { Ok(()) };
    everywhere.and(kernel).and(fuzzed)
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments);
    cargo.current_dir(root);
    cargo
}
