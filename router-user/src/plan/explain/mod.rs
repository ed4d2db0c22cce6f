//! Explanations of a plan, for operators.

pub mod report;
pub mod shed;
pub(crate) mod text;
pub mod weights;
