//! One client connection: its requests, the attempts at engines, the answers.

pub(crate) mod attempt;
pub(crate) mod client;
