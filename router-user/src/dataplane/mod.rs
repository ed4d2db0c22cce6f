//! The data plane as a role of this process: it follows the controller's snapshots, feeds the proxy and the kernel, and reports demand.
//!
//! Nothing here is on a request's path: requests read the routes that were swapped in last.

mod counts;
mod distance;
mod effective;
mod follow;
mod kernel;
mod outage;
mod report;
mod role;
mod staleness;

pub use distance::{Distances, measure_distances};
pub use effective::{InForce, Reservations};
pub use follow::{Source, apply, first_snapshot, follow};
pub use kernel::KernelRole;
pub use outage::watch_losses;
pub use report::report_demand;
pub use role::DataRole;
pub use staleness::{Contact, doubt};
