//! The task that owns the control plane's state.
//!
//! [`task`] is the loop: it takes one event at a time and never waits for anything else. What takes
//! time, as making a plan, writing to a store and reading from one do, runs beside it and comes
//! back as one more event. So reports, probes, commands and questions about the status are answered
//! while a plan is made.
//!
//! [`round`] goes from one plan to its publication; [`orders`] carries out what operators ask.
//! [`command`] and [`handle`] are what others see of the controller, [`status`] what it shows.

pub(crate) mod command;
pub(crate) mod handle;
mod marks;
mod orders;
mod round;
pub(crate) mod status;
pub(crate) mod task;
