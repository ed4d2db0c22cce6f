//! The data plane as a role of this process: it follows the controller's snapshots, feeds the proxy
//! and the kernel, and reports demand.
//!
//! [`DataRole`] holds the state; every other file is a task that changes it, or a pure step that it
//! uses. In the order in which a snapshot passes through: `source` and `follow` fetch and check it,
//! `effective` applies what this data plane knows better (`staleness` while the controller is
//! silent, failover weights for engines that are down), and the role swaps the tables in, the
//! kernel's (`kernel`) before the proxy's. `silence`, `outage`, `reachability` and `distance` watch
//! the controller and the engines; `report` tells the controller what was counted (`counts`).
//!
//! Nothing here is on a request's path: requests read the tables that were swapped in last.

mod counts;
mod distance;
mod effective;
mod follow;
mod heartbeat;
mod kernel;
mod outage;
mod reachability;
mod report;
mod role;
mod silence;
mod source;
mod staleness;

pub use distance::measure_distances;
pub use effective::{Effective, LocalOverrides};
pub use follow::{ApplyError, FirstSnapshotError, apply, first_snapshot, follow};
pub use kernel::KernelRole;
pub use outage::watch_outages;
pub use reachability::watch_reachability;
pub use report::report_demand;
pub use role::{DataRole, DataStatus, Reachability, Setup};
pub use silence::watch_silence;
pub use source::{ReportError, Source};
