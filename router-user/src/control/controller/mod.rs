//! The task that owns the control plane's state.
//!
//! [`task`] is the loop: it takes one event at a time and waits for nothing else. Slow work
//! (planning, writing to a store, reading from one) runs beside it and returns as an event. So
//! reports, probes, commands and questions about the status are answered while a plan is made.
//!
//! [`round`] goes from one plan to its publication; [`orders`] and [`engine_orders`] carry out
//! what operators ask.
//! [`command`] and [`handle`] are the interface to the controller; [`status`] describes its state.

pub(crate) mod command;
mod engine_orders;
pub(crate) mod handle;
mod marks;
mod orders;
mod round;
pub(crate) mod status;
pub(crate) mod task;
