//! A new plan is tried in one cluster before the others follow.
//!
//! [`machine`] decides what is published and for whom, from the time, what is in force and the next
//! plan; [`cluster`] knows the canary's cluster: what its requests meet, the trial that runs there,
//! and the plan that failed. Both are pure: the controller and the simulator perform what the
//! machine answers.

mod cluster;
mod machine;

pub use machine::{Action, Canary, NextPlan};
