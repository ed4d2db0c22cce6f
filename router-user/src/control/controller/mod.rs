//! The task that owns the control plane's state.

pub(crate) mod task;
