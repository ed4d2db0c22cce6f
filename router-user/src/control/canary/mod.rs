//! A new plan is tried in one cluster before the others follow.
//!
//! [`machine`] decides what is published and for which clusters, from the time, the current
//! snapshot and the next plan; [`cluster`] knows the canary's cluster: what its requests meet, the
//! trial that runs there, and the plan that failed. Both are pure: the controller and the simulator
//! perform what the machine answers.

mod cluster;
mod machine;

pub use machine::{Action, Canary, NextPlan};
