//! Logs as lines on stderr.

use std::io::IsTerminal;

/// Sends logs to stderr. `ILB_LOG` sets the level, `info` unless given.
pub fn start_logs() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("ILB_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
