//! The planning problem as a linear program.
//!
//! `formulation` holds demands, pools and the edges between them; `pools` groups engines that are
//! alike; `components` splits a problem into parts that do not touch; `linearization` cuts the
//! convex latency curves into segments; `lp` writes the program; `cooldown` prices moving weights
//! that have moved lately.

pub(crate) mod components;
pub(crate) mod cooldown;
pub(crate) mod formulation;
pub(crate) mod linearization;
pub(crate) mod lp;
pub(crate) mod pools;
