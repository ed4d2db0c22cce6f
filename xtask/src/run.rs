//! Sets up, builds everything, and starts the demonstration: from a clone to a routed fleet.

use std::{
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use cargo_metadata::MetadataCommand;
use clap::Args;

use crate::{
    build_ebpf,
    command::{command, run},
    setup,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Arguments of the demonstration: `cargo xtask run -- --help` lists them, `-- -c FILE` runs
    /// another configuration.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds everything and becomes the demonstration: false engines, control plane, a proxy per
/// cluster, load and a live table.
pub(crate) fn demo(root: &Path, options: &Options) -> anyhow::Result<()> {
    become_bench(root, "demo", &options.arguments)
}

/// Builds everything and becomes the real engines with `ilb` before them.
pub(crate) fn real_engine(root: &Path, options: &Options) -> anyhow::Result<()> {
    become_bench(root, "real-engine", &options.arguments)
}

fn become_bench(root: &Path, subcommand: &str, arguments: &[String]) -> anyhow::Result<()> {
    build(root)?;
    let program = target_dir(root)?.join("release/ilb-bench");
    // The program takes this one's place, so that ctrl-c and the exit code are its own.
    let error = command(&program, [subcommand]).current_dir(root).args(arguments).exec();
    Err(error).with_context(|| format!("failed to start {}", program.display()))
}

/// Builds every binary, the eBPF object first.
fn build(root: &Path) -> anyhow::Result<()> {
    setup::ensure()?;
    build_ebpf::build_ebpf(root)?;
    run(command("cargo", ["build", "--release", "--workspace"]).current_dir(root))
}

/// Cargo's target folder, whatever the environment and the configuration say.
pub(crate) fn target_dir(root: &Path) -> anyhow::Result<PathBuf> {
    let mut metadata = MetadataCommand::new();
    metadata.current_dir(root).no_deps().other_options(vec!["--offline".to_owned()]);
    Ok(metadata.exec().context("cargo metadata failed")?.target_directory.into_std_path_buf())
}
