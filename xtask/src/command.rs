//! Runs programs.

use std::{ffi::OsStr, process::Command};

use anyhow::{Context as _, ensure};

/// A program with arguments.
pub(crate) fn command<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs a command with this process's input and output; fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", text(command)))?;
    ensure!(status.success(), "{} failed: {status}", text(command));
    Ok(())
}

/// The standard output of a command, trimmed; `None` if it cannot be started or fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A command in the form of a shell.
pub(crate) fn text(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call has no conditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
