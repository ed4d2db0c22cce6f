//! The list of requests that reached the engine.
//!
//! Each line is written before the request is looked at, so that the list holds what a fault leaves
//! unanswered, and what killed the process.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::clock;

/// The mark of a request's number in its body: `[#17]`.
const OPEN: &[u8] = b"[#";

/// Appends to the file of `--journal`.
#[derive(Debug, Default)]
pub(super) struct Journal {
    file: Option<RefCell<File>>,
}

impl Journal {
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| {
            let file = File::options().create(true).append(true).open(path);
            file.with_context(|| format!("failed to write {} (--journal)", path.display()))
        };
        Ok(Self { file: path.map(open).transpose()?.map(RefCell::new) })
    }

    /// Notes a request that found `in_flight` others in the engine.
    pub(super) fn note(&self, body: &[u8], in_flight: u64) {
        let Some(file) = &self.file else { return };
        let mark = mark(body).map_or_else(|| "-".to_owned(), |number| number.to_string());
        let line = format!("{} {mark} {in_flight}\n", clock::monotonic_ns());
        if let Err(error) = file.borrow_mut().write_all(line.as_bytes()) {
            tracing::warn!(%error, "failed to write to the journal");
        }
    }
}

/// The number of a request, from its mark.
fn mark(body: &[u8]) -> Option<u64> {
    let from = memchr::memmem::find(body, OPEN)? + OPEN.len();
    let length = memchr::memchr(b']', &body[from..])?;
    std::str::from_utf8(&body[from..from + length]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_numbers_in_brackets() {
        let cases: [(&[u8], Option<u64>); 5] =
            [(b"x [#17] y", Some(17)), (b"[#]", None), (b"[#1", None), (b"[#-1]", None), (b"17", None)];
        for (body, wanted) in cases {
            assert_eq!(mark(body), wanted, "{}", String::from_utf8_lossy(body));
        }
    }
}
