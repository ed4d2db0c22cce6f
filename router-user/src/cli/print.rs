//! Output of commands.

use std::io::{ErrorKind, Write};

/// Writes to stdout; a reader that went away early ends the program quietly.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}
