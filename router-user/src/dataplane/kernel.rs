//! The kernel plane as a follower of one class's weights.

use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::kernel::{KernelPlane, KernelStatus};
use crate::publish::Generation;
use crate::publish::routes::Routes;

/// The attached kernel plane, and the class whose weights its service follows.
pub struct KernelRole {
    /// A panic while a table is written leaves the live bank as it was: the idle one is written
    /// first.
    plane: Mutex<KernelPlane>,
    class: String,
}

impl KernelRole {
    pub fn new(plane: KernelPlane, class: String) -> Self {
        Self { plane: Mutex::new(plane), class }
    }

    /// Gives the kernel the class's table. A failure is logged, and the kernel keeps the table it
    /// has.
    pub fn apply(&self, routes: &Routes) {
        let snapshot = &routes.snapshot;
        if snapshot.generation == 0 {
            // Generation 0 is planned by this data plane alone; a table that the kernel still has
            // is of a published one.
            return;
        }
        let Some(route) = routes.classes.iter().find(|r| snapshot.classes[r.class.index()].name == self.class) else {
            tracing::warn!(class = self.class, "the snapshot does not know the kernel plane's class");
            return;
        };
        let address = |engine: u16| snapshot.engines[usize::from(engine)].address;
        let eligible: Vec<u16> = route.candidates.iter().map(|c| c.engine.0).collect();
        let engines: Vec<(u16, SocketAddr)> = eligible.iter().map(|&engine| (engine, address(engine))).collect();
        let outcome = self.plane.lock().apply(snapshot.generation, route.table.slots(), &engines, &eligible);
        if let Err(error) = outcome {
            tracing::warn!(%error, generation = %Generation(snapshot.generation), "the kernel refused a table and keeps the one it has");
        }
    }

    pub fn status(&self) -> Option<KernelStatus> {
        self.plane.lock().status().map_err(|error| tracing::warn!(%error, "failed to read the state of the kernel plane")).ok()
    }

    /// Logs new kernel events and registers listeners that did not register themselves. To be
    /// called about once a second.
    pub fn maintain(&self) {
        if let Err(error) = self.plane.lock().maintain() {
            tracing::warn!(%error, "failed to maintain the kernel plane");
        }
    }
}
