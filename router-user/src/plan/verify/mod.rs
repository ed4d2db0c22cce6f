//! The check of a plan, independent of the solver.
//!
//! `legality` asks whether weights obey every rule and is the only maker of [`LegalWeights`];
//! `certificate` asks how far a solution is from the best. Both name what is wrong as a
//! [`Violation`].

pub(crate) mod certificate;
mod legality;
mod violation;

pub use legality::{LegalWeights, legal};
pub use violation::Violation;
