//! The roles of this process, and its readiness.

use std::sync::Arc;
use std::time::Duration;

use crate::admin::live;
use crate::admin::view::StatusView;
use crate::clock::{Clock, unix_ms};
use crate::control::ControllerHandle;
use crate::dataplane::{DataRole, Reachability};
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;

/// The parts of this process that the admin endpoints show.
#[derive(Clone)]
pub struct AdminState {
    pub clock: Clock,
    pub controller: Option<ControllerHandle>,
    pub data: Option<Arc<DataRole>>,
}

impl AdminState {
    /// The snapshot in use: the data plane's, or in a process without one, the snapshot that the
    /// controller published last.
    pub(super) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        match (&self.data, &self.controller) {
            (Some(data), _) => data.snapshot(),
            (None, Some(controller)) => controller.snapshots.borrow().clone(),
            (None, None) => None,
        }
    }

    pub(super) fn status(&self) -> StatusView {
        let snapshot = self.snapshot();
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.clock.now().as_secs_f64(),
            ready: self.readiness().err().map_or("yes".to_owned(), |reason| format!("no: {reason}")),
            generation: snapshot.as_ref().map(|s| Generation(s.generation)),
            snapshot_age_s: snapshot.as_ref().map(|s| age(s).as_secs_f64()),
            status: snapshot.as_ref().map(|s| s.status),
            objective_ms: snapshot.as_ref().map(|s| s.objective_ms),
            control: self.controller.as_ref().map(|c| c.status.borrow().clone()),
            proxy: self.data.as_deref().map(live::proxy),
            kernel: self.data.as_deref().and_then(live::kernel),
            kernel_error: self.data.as_ref().and_then(|data| data.setup().kernel_error.clone()),
        }
    }

    /// Lets the proxy's `/readyz` answer as [`Self::readiness`] says.
    pub(super) fn judge_proxy(&self) {
        let Some(data) = &self.data else { return };
        // The data plane owns the judgement, and must not own itself by it.
        let (clock, controller, role) = (self.clock, self.controller.clone(), Arc::downgrade(data));
        data.setup().plane.judge_readiness(move || {
            let data = role.upgrade();
            let state = Self { clock, controller: controller.clone(), data };
            state.readiness().map(|_| ())
        });
    }

    /// The readiness of this process: the generation in use, or the reason for which it cannot
    /// serve.
    ///
    /// A data plane is ready when it has a snapshot and can reach an engine. A controller alone is
    /// ready when it has published: data planes need its snapshots most when engines fail, so
    /// probes that fail do not make it unready.
    pub(super) fn readiness(&self) -> Result<Generation, String> {
        let snapshot = self.snapshot().ok_or("no snapshot yet")?;
        let Some(data) = &self.data else { return Ok(Generation(snapshot.generation)) };
        match data.status().reachability {
            Reachability::Reachable => {}
            Reachability::Unknown => return Err("engines are being probed for the first time".to_owned()),
            Reachability::Unreachable(0) => return Err("no engine is eligible for any class of this cluster".to_owned()),
            Reachability::Unreachable(1) => return Err("no engine can be reached: connections to the only one fail".to_owned()),
            Reachability::Unreachable(count) => {
                return Err(format!("no engine can be reached: connections to all {count} fail"));
            }
        }
        if let Some(controller) = &self.controller {
            let engines = &controller.status.borrow().engines;
            if !engines.is_empty() && engines.iter().all(|engine| !engine.ready) {
                return Err(format!("no engine passes its health probe ({} are configured)", engines.len()));
            }
        }
        Ok(Generation(snapshot.generation))
    }
}

/// Age of a snapshot by the wall clock; zero when that clock was set back.
pub(super) fn age(snapshot: &Snapshot) -> Duration {
    Duration::from_millis(unix_ms().saturating_sub(snapshot.published_unix_ms))
}
