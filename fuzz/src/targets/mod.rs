//! The targets, one file each.

pub(crate) mod chunked;
pub(crate) mod config;
pub(crate) mod exposition;
pub(crate) mod loads;
pub(crate) mod payload;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod snapshot;
