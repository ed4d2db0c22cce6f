//! Pure decisions about one request or one engine: no IO, no clock, no entropy. Time comes in as [`Millis`], chance as a number.

pub mod affinity;
pub mod budget;
pub mod decay;
pub mod health;
pub mod outage;
pub mod pick;

pub use crate::clock::Millis;
