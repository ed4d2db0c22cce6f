//! Runs every test: the workspace's, and those that need a real kernel and root.

use std::{env, path::Path, process::Command};

use clap::Args;

use crate::{
    build_ebpf,
    command::{command, is_root, run},
    setup,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Passed on to `cargo test`, for instance a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Set where a kernel test that cannot run is a failure, not a skip.
const KERNEL_TESTS_REQUIRED: &str = "ILB_KERNEL_TESTS_REQUIRED";

pub(crate) fn test(root: &Path, options: &Options) -> anyhow::Result<()> {
    setup::ensure()?;
    build_ebpf::build_ebpf(root)?;
    // The release profile alone: HiGHS is compiled once per profile, and takes minutes.
    let everywhere = run(cargo(root, &["test", "--release", "--workspace"]).args(&options.arguments));
    let mut kernel = cargo(root, &["test", "--release", "--package", "router-user", "--test", "netns"]);
    if is_root() || env::var("CI").is_ok_and(|value| value == "true") {
        kernel.env(KERNEL_TESTS_REQUIRED, "1");
    }
    // The kernel tests run whatever came of the others: one run tells everything.
    everywhere.and(run(kernel.args(&options.arguments)))
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments);
    cargo.current_dir(root);
    cargo
}
