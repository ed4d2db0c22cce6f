//! The binary `ilb`: arguments in, exit code out.

mod app;
mod claims;
mod cli;

use std::process::ExitCode;

use clap::Parser;

use cli::args::{Cli, Command, KernelCommand};
use cli::print::with_causes;
use cli::profile_args::ProfileCommand;
use cli::usage::UsageError;
use cli::{docs, offline, profile, query, record};

fn main() -> ExitCode {
    router_user::telemetry::start_logs();
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => serve(app::run(args)),
        Command::Proxy(args) => serve(app::proxy(args)),
        Command::Control(args) => serve(app::control(args)),
        Command::Check { file } => offline::check(&file),
        Command::Solve { file, what_if, json } => offline::solve(&file, &what_if, json),
        Command::Explain(args) => match &args.file {
            Some(file) => offline::explain(file, &args),
            None => serve(query::explain(args)),
        },
        Command::Profile { command: ProfileCommand::Fit(args) } => profile::fit(&args),
        Command::Profile { command: ProfileCommand::Record(args) } => serve(record::record(args)),
        Command::Profile { command: ProfileCommand::Derive(args) } => profile::derive(&args),
        Command::Status(args) => serve(query::status(args)),
        Command::Engines(args) => serve(query::engines(args)),
        Command::Weights(args) => serve(query::weights(args)),
        Command::Snapshots(args) => serve(query::snapshots(args)),
        Command::Rollback { generation, ttl, socket } => serve(query::rollback(generation, ttl, socket)),
        Command::Kernel { command: KernelCommand::Status { pin_dir, json } } => offline::kernel_status(&pin_dir, json),
        Command::Kernel { command: KernelCommand::Detach { pin_dir } } => offline::kernel_detach(&pin_dir),
        Command::Docs { page } => docs::docs(page.as_deref()),
    }
}

/// Runs cold-path work on a small runtime; the request path has threads of its own.
fn serve(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
