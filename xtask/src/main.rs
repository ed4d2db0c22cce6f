//! The project's own tasks: `cargo xtask --help`.

mod build_ebpf;
mod command;
mod setup;
mod test;
mod toolchain;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

/// The project's own tasks. Each does first whatever it needs done, and is quick when there is nothing to do.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs what building and testing need: packages as root on Debian and Ubuntu; elsewhere prints the commands and stops.
    Setup(setup::Options),
    /// Builds the eBPF object that the `ilb` binary embeds.
    BuildEbpf,
    /// Runs every test; the kernel tests need root and say so.
    Test(test::Options),
}

fn main() -> anyhow::Result<()> {
    let root = root();
    match Arguments::parse().task {
        Task::Setup(options) => setup::setup(&options),
        Task::BuildEbpf => build_ebpf::build_ebpf(&root),
        Task::Test(options) => test::test(&root, &options),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace's folder").to_owned()
}
