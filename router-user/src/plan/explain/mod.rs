//! Explanations of a plan, for operators.

pub mod report;
pub mod shed;
pub(crate) mod text;
mod types;
pub mod weights;
