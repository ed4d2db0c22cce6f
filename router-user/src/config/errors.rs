//! Mistakes in a configuration, each with its place and the wanted form.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Counts from 1; 0 when the place is the file as a whole.
    pub line: usize,
    /// Key path, such as `engine[1].address`; empty for the file as a whole.
    pub path: String,
    pub message: String,
}

/// All mistakes of a file, in the order of their places.
#[derive(Debug, Error)]
pub struct ConfigErrors {
    pub file: PathBuf,
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:", self.file.display())?;
            if mistake.line > 0 {
                write!(f, "{}:", mistake.line)?;
            }
            if !mistake.path.is_empty() {
                write!(f, " {}:", mistake.path)?;
            }
            write!(f, " {}", mistake.message)?;
        }
        Ok(())
    }
}
