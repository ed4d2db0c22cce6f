//! From what the file says to a legal configuration: names are looked up, defaults filled in.
//!
//! `fleet` checks clusters, engines, classes, profiles and distances against each other; `sections`
//! reads the tables that stand alone.

pub(super) mod fleet;
pub(super) mod sections;
