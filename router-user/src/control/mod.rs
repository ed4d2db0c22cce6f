//! The control plane: measure, plan, check, publish; every period, and at once when an engine's
//! health or a pin changes.
//!
//! [`controller`] is the task that owns all state and takes one event at a time; [`estimate`] turns
//! reports into the inputs of a plan; [`engines`] judges engines; [`leadership`] elects the
//! publisher and publishes. Nothing here is on a request's path.

mod canary;
pub(crate) mod controller;
mod cycle;
mod engine_orders;
pub(crate) mod engines;
pub mod estimate;
pub(crate) mod leadership;
mod pins;
mod planner_thread;
mod server;

pub use canary::{Action, Canary, NextPlan};
pub use controller::command::{Command, CommandError};
pub use controller::handle::ControllerHandle;
pub use controller::status::{ControlStatus, Explained};
pub use controller::task::Controller;
pub use cycle::{Conclusion, CycleError, Planning, completed, conclude, failover_weights, restated};
pub use engine_orders::{OrderError, OrderReply, OrderRequest, OrderVerb};
pub use engines::anomaly::Anomaly;
pub use engines::health::{Answer, Probe, Verdict};
pub use estimate::demand::{DemandEstimate, Freshness, ReportError};
pub use estimate::state::{ClusterDemand, EngineDrift, EngineHealth, EnginePresent, MeasureError, Measured};
pub(crate) use pins::time_left;
pub use pins::{PinError, PinRequest};
pub use planner_thread::PlanFn;
pub use server::{router, serve, serve_on};
