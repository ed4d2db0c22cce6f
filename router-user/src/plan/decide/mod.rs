//! From a plan to the next publication.
//!
//! `gate` decides whether a plan is published; `rollout` splits a large change into legal steps;
//! `failover` computes the weights for a lost engine or region; `regions` tells how much demand
//! each loss would refuse; `whatif` answers questions about changed inputs.

pub mod failover;
pub mod gate;
pub mod regions;
pub mod rollout;
pub mod whatif;
