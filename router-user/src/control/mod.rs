//! The control plane: measure, plan, check, publish; every period, and at once when an engine's health or a pin changes.
//!
//! One task owns all state and takes events one at a time ([`controller`]); what it has measured is pure state ([`measured`]). Probes, HTTP requests and operators only send it events;
//! planning runs on a thread of its own, so that reports and probes are taken meanwhile. Nothing here is on a request's path.

mod arrivals;
mod bursts;
mod canary;
mod caution;
mod conduct;
mod controller;
mod cycle;
mod demand;
mod dispersion;
mod distances;
mod drift;
mod health;
mod leader;
mod measured;
mod pins;
mod progress;
mod publisher;
mod server;
mod solver;

pub use controller::{Command, CommandError, ControlStatus, Controller, ControllerHandle, Explained};
pub use cycle::{Conclusion, Planning, conclude};
pub use demand::{DemandEstimate, ReportError, Standing};
pub use health::{Answer, Probe, Verdict};
pub use measured::{ClusterDemand, EngineDrift, EngineHealth, MeasureError, Measured, Suspicion};
pub use pins::{PinError, PinRequest};
pub use server::{router, serve};
