//! The kernel plane as a follower of one class's weights.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use crate::kernel::{KernelPlane, KernelStatus};
use crate::publish::routes::Routes;

/// The attached kernel plane, and the class whose weights its service follows.
pub struct KernelRole {
    plane: Mutex<KernelPlane>,
    class: String,
}

impl KernelRole {
    pub fn new(plane: KernelPlane, class: String) -> Self {
        Self { plane: Mutex::new(plane), class }
    }

    /// Gives the kernel the class's table. What it cannot take is logged: the kernel goes on with the table it has.
    pub fn apply(&self, routes: &Routes) {
        let snapshot = &routes.snapshot;
        if snapshot.generation == 0 {
            // Made up by this data plane until it has heard of a published one; what the kernel has, if anything, is better.
            return;
        }
        let Some(route) = routes.classes.iter().find(|r| snapshot.classes[r.class.index()].name == self.class) else {
            tracing::warn!(class = self.class, "the snapshot does not know the kernel plane's class");
            return;
        };
        let address = |engine: u16| snapshot.engines[usize::from(engine)].address;
        let eligible: Vec<u16> = route.candidates.iter().map(|c| c.engine.0).collect();
        let engines: Vec<(u16, SocketAddr)> = eligible.iter().map(|&engine| (engine, address(engine))).collect();
        let outcome = self.lock().apply(snapshot.generation, route.table.slots(), &engines, &eligible);
        if let Err(error) = outcome {
            tracing::warn!(%error, generation = snapshot.generation, "the kernel plane keeps its table");
        }
    }

    pub fn status(&self) -> Option<KernelStatus> {
        self.lock().status().map_err(|error| tracing::warn!(%error, "the kernel plane's state cannot be read")).ok()
    }

    /// What wants doing about once a second: events to the log, and listeners that did not register themselves.
    pub fn maintain(&self) {
        if let Err(error) = self.lock().maintain() {
            tracing::warn!(%error, "the kernel plane cannot be maintained");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KernelPlane> {
        // A panic while a table was written leaves the live bank as it was: the idle one is written first.
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
