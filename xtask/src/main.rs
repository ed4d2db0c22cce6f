//! The project's own tasks: `cargo xtask --help`.

mod build_ebpf;
mod command;
mod fuzz;
mod run;
mod setup;
mod test;
mod tidy;
mod toolchain;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

/// The project's own tasks. Each first does what it needs, and is quick when there is nothing to
/// do.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs the packages for building and testing, as root on Debian and Ubuntu; elsewhere
    /// prints the commands and stops.
    Setup(setup::Options),
    /// Builds the eBPF object that the `ilb` binary embeds.
    BuildEbpf,
    /// Sets up, builds everything and shows a routed fleet: false engines, control plane, a proxy
    /// per cluster, load, a live table.
    Run(run::Options),
    /// Runs ilb before two real llama.cpp engines with a tiny model.
    RealEngine(run::Options),
    /// Checks formatting, lints and licences.
    Tidy,
    /// Runs every test, or with --fast those that need nothing but the compiler; the kernel tests
    /// need root and say so.
    Test(test::Options),
    /// Searches for inputs that break a parser, with libFuzzer.
    Fuzz(fuzz::Options),
}

fn main() -> anyhow::Result<()> {
    if fuzz::is_compiler() {
        return fuzz::compile();
    }
    let root = root();
    match Arguments::parse().task {
        Task::Setup(options) => setup::setup(&options),
        Task::BuildEbpf => build_ebpf::build_ebpf(&root),
        Task::Run(options) => run::demo(&root, &options),
        Task::RealEngine(options) => run::real_engine(&root, &options),
        Task::Tidy => tidy::tidy(&root),
        Task::Test(options) => test::test(&root, &options),
        Task::Fuzz(options) => fuzz::fuzz(&root, &options),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace's folder").to_owned()
}
