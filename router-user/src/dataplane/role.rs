//! The state of one cluster's data plane in this process.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;

use super::distance::Distances;
use super::effective::Reservations;
use super::kernel::KernelRole;
use super::staleness::Contact;
use crate::model::Fleet;
use crate::proxy::DataPlane;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DirStore, Held};

/// One cluster's data plane in this process.
pub struct DataRole {
    pub cluster: String,
    pub plane: Arc<DataPlane>,
    pub listen: Vec<SocketAddr>,
    /// The IO driver in use.
    pub io: String,
    /// What this data plane keeps on its own disk.
    pub store: DirStore,
    pub kernel: Option<KernelRole>,
    /// Why there is no kernel plane although it is enabled.
    pub kernel_error: Option<String>,
    /// The newest snapshot, as it was published: what is in force may have decayed since.
    pub published: ArcSwapOption<Snapshot>,
    /// The last snapshot that was for other clusters.
    pub passed_over: ArcSwapOption<Held>,
    pub contact: Contact,
    /// Measured and not reported yet.
    pub distances: Distances,
    /// The fleet of this process's own configuration: it knows the distances.
    pub fleet: Fleet,
    /// What is held against the published weights.
    pub reservations: Mutex<Reservations>,
    /// Held while tables are swapped in, so that an older state never overtakes a newer one.
    pub installing: Mutex<()>,
    /// Last failure to reach the controller, while it lasts.
    pub controller_error: ArcSwapOption<String>,
}
