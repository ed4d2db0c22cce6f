//! The controller of a simulated life: production's measurements, planning and conclusions, without
//! its tasks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use router_user::config::Config;
use router_user::control::{Conclusion, Measured, Planning, Probe, conclude};
use router_user::plan::{Inputs, plan};
use router_user::publish::snapshot::Snapshot;
use router_user::publish::store::DemandReport;
use router_user::publish::{Generation, build};

use super::checker::{Checker, Judged};
use super::policy::Policy;
use super::types::Published;

/// Time for the solves of one plan: no plan of a simulated fleet comes near it, so that no decision
/// depends on the machine.
const BUDGET: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Controller {
    config: Arc<Config>,
    policy: Policy,
    measured: Measured,
    planning: Planning,
    pub(super) published: Option<Arc<Published>>,
    is_urgent: bool,
}

/// What came of one plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub(super) has_published: bool,
    pub(super) moved_frac: f64,
}

impl Controller {
    pub(super) fn new(config: &Arc<Config>, policy: Policy) -> Self {
        Self {
            config: Arc::clone(config),
            policy,
            measured: Measured::new(Arc::clone(config)),
            planning: Planning::new(BUDGET),
            published: None,
            is_urgent: false,
        }
    }

    /// A new process in the place of the old one: all it has is what is in the store.
    pub(super) fn restart(&mut self, now: Duration) {
        *self = Self { published: self.published.take(), ..Self::new(&self.config, self.policy) };
        if let Some(snapshot) = self.published.as_ref().and_then(|published| published.snapshot.as_ref()) {
            self.measured.start_from(now, snapshot);
        }
    }

    /// What data planes start from: planned by each from the configuration, generation 0.
    ///
    /// Errors: there is no such plan.
    pub(super) fn first(config: &Config, policy: Policy) -> Result<Published> {
        let inputs = Inputs::from_fleet(&config.fleet);
        if policy != Policy::Optimiser {
            return Ok(Published { generation: 0, snapshot: None, weights: policy.weights(&config.fleet, &inputs) });
        }
        let plan = plan(&config.fleet, &inputs, None)?;
        let snapshot = build::snapshot(&config.fleet, &plan, 0, 0, "planned by the data plane").sealed();
        Ok(Published { generation: 0, snapshot: Some(Arc::new(snapshot)), weights: plan.weights() })
    }

    /// Errors: production refuses the report.
    pub(super) fn report(&mut self, now: Duration, report: &DemandReport) -> Result<()> {
        Ok(self.measured.report(now, report)?)
    }

    pub(super) fn probe(&mut self, probe: Probe) {
        self.is_urgent |= self.measured.probe(probe).is_some();
    }

    /// Plans if it is time to, or at once if an engine's health has changed.
    ///
    /// Errors: there is no plan, or the checker does not like what is published.
    pub(super) fn step(&mut self, now: Duration, checker: &mut Checker) -> Result<Step> {
        let is_due = now.as_secs().is_multiple_of(self.config.control.period.as_secs().max(1));
        if !is_due && !std::mem::take(&mut self.is_urgent) {
            return Ok(Step::default());
        }
        self.is_urgent = false;
        let fleet = &self.config.fleet;
        let held = self.published.as_ref().map(|published| published.weights.clone());
        let (inputs, suspicions) = self.measured.inputs(now, Vec::new(), held.as_deref());
        checker.note_suspicions(&suspicions);
        let generation = self.published.as_ref().map_or(0, |published| published.generation);
        let next = Generation::after(Generation(generation), Generation(generation).epoch());
        let next = next.ok_or_else(|| anyhow!("no generation after {generation}"))?.0;
        if self.policy != Policy::Optimiser {
            let weights = self.policy.weights(fleet, &inputs);
            let moved_frac =
                held.as_ref().map_or(0.0, |held| router_user::plan::decide::gate::moved_frac(&inputs, held, &weights));
            self.published = Some(Arc::new(Published { generation: next, snapshot: None, weights }));
            return Ok(Step { has_published: true, moved_frac });
        }
        let plan = self.planning.plan(fleet, &inputs, held.as_deref()).map_err(|failure| anyhow!("{failure}"))?;
        let Conclusion { decision, published, .. } = conclude(fleet, &inputs, held.as_deref(), &plan);
        let judged = Judged { inputs: &inputs, held: held.as_deref(), plan: &plan, decision: &decision };
        let Some((plan, content)) = published else {
            checker.plan(now, &judged, None)?;
            return Ok(Step::default());
        };
        // What is published may go only part of the way to the plan.
        let alternates = build::alternates(&self.planning.alternates(fleet, &inputs, &plan.weights()));
        let published_unix_ms = now.as_millis() as u64;
        let snapshot = Arc::new(Snapshot { generation: next, published_unix_ms, alternates, ..content }.sealed());
        let moved_frac = checker.plan(now, &judged, Some(&snapshot))?;
        // As a controller reads it back: what is held is what was published, not what was planned.
        let weights = build::held_weights(fleet, &snapshot).ok_or_else(|| anyhow!("the snapshot is of another fleet"))?;
        self.published = Some(Arc::new(Published { generation: next, snapshot: Some(snapshot), weights }));
        Ok(Step { has_published: true, moved_frac })
    }
}
