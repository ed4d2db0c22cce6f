//! The data plane as a role of this process: it follows the controller's snapshots, feeds the proxy and the kernel, and reports demand.
//!
//! Nothing here is on a request's path: requests read the routes that were swapped in last.

mod follow;
mod kernel;
mod live;
mod report;

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub use follow::{Source, apply, first_snapshot, follow};
pub use kernel::KernelRole;
pub use report::report_demand;

use crate::proxy::DataPlane;

/// One cluster's data plane in this process.
pub struct DataRole {
    pub cluster: String,
    pub plane: Arc<DataPlane>,
    pub listen: Vec<SocketAddr>,
    /// The IO driver in use.
    pub io: String,
    pub kernel: Option<KernelRole>,
    /// Why there is no kernel plane although it is enabled.
    pub kernel_error: Option<String>,
    /// Last failure to reach the controller, while it lasts.
    pub controller_error: ArcSwapOption<String>,
}
