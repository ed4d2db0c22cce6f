//! Which controller publishes, and how it publishes.

pub(crate) mod archive;
pub(crate) mod leader;
pub(crate) mod publisher;
