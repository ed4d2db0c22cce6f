//! Mistakes in the arguments.

use std::path::Path;

use router_user::config::{Config, ConfigErrors};

/// A mistake in the arguments; the process ends with exit code 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error("{0}")]
    Arguments(String),
}

pub(crate) fn load(file: &Path) -> Result<Config, UsageError> {
    Ok(router_user::config::load(file)?)
}
