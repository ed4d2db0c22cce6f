//! Pure decisions about one request or one engine: no IO, no clock, no entropy. Time comes in as [`Millis`], chance as a number.

pub mod affinity;
pub mod budget;
pub mod decay;
pub mod health;
pub mod loss;
pub mod pick;

/// A monotonic time, in ms since the worker started.
pub type Millis = u64;
