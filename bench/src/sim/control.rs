//! The controller of a simulated life: production's measurements, planning and conclusions, without
//! its tasks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use router_user::config::Config;
use router_user::control::{Action, Canary, Conclusion, Measured, NextPlan, Planning, Probe, conclude, failover_weights};
use router_user::plan::decide::gate::{Decision, PublishReason};
use router_user::plan::{Inputs, plan};
use router_user::protocol::DemandReport;
use router_user::publish::snapshot::Snapshot;
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
    canary: Canary,
    /// What a store would have: the newest snapshot that is for all.
    last_for_all: Option<Arc<Snapshot>>,
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
            canary: Canary::new(config),
            last_for_all: None,
            published: None,
            is_urgent: false,
        }
    }

    /// A new process in the place of the old one: all it has is what is in the store.
    pub(super) fn restart(&mut self, now: Duration) {
        let (published, last_for_all) = (self.published.take(), self.last_for_all.take());
        *self = Self { published, last_for_all, ..Self::new(&self.config, self.policy) };
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
        self.canary.on_report(now, report);
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
        let config = Arc::clone(&self.config);
        let fleet = &config.fleet;
        if self.policy != Policy::Optimiser {
            return self.follow_policy(now, checker);
        }
        let on_tick = self.canary.on_tick(now, fleet, self.current_snapshot().as_deref());
        let ended = match on_tick {
            Action::Publish(content) => Some(content),
            Action::TakeBack { reason } => self.last_for_all.as_deref().map(|last| Snapshot { reason, ..last.clone() }),
            Action::Nothing | Action::HoldBack(_) | Action::Trial(_) => None,
        };
        if let Some(content) = ended {
            self.publish(now, content)?;
        }
        let current = self.published.as_ref().map(|published| published.weights.clone());
        let (inputs, anomalies) = self.measured.inputs(now, Vec::new(), current.as_deref());
        checker.note_anomalies(&anomalies);
        let plan = self.planning.plan(fleet, &inputs, current.as_deref())?;
        let Conclusion { decision, published, .. } = conclude(fleet, &inputs, current.as_deref(), &plan);
        let judged = Judged { inputs: &inputs, current: current.as_deref(), plan: &plan, decision: &decision };
        let Some((plan, content)) = published else {
            checker.plan(now, &judged, None)?;
            return Ok(Step::default());
        };
        // What is published may go only part of the way to the plan.
        let (weights, snapshot_before) = (plan.weights(), self.current_snapshot());
        let next = NextPlan {
            fleet,
            inputs: &inputs,
            current: snapshot_before.as_ref(),
            current_weights: current.as_deref(),
            weights: &weights,
            content: &content,
            is_urgent: matches!(decision, Decision::Publish(PublishReason::First | PublishReason::Illegal(_))),
        };
        let content = match self.canary.on_plan(now, &next) {
            Action::Publish(content) | Action::Trial(content) => content,
            Action::Nothing | Action::HoldBack(_) | Action::TakeBack { .. } => {
                checker.plan(now, &judged, None)?;
                return Ok(Step::default());
            }
        };
        let failovers = build::failovers(&failover_weights(fleet, &inputs, &weights));
        let snapshot = self.publish(now, Snapshot { failovers, ..content })?;
        let moved_frac = checker.plan(now, &judged, Some(&snapshot))?;
        Ok(Step { has_published: true, moved_frac })
    }

    /// A policy that is only compared with publishes at every plan.
    fn follow_policy(&mut self, now: Duration, checker: &mut Checker) -> Result<Step> {
        let current = self.published.as_ref().map(|published| published.weights.clone());
        let (inputs, anomalies) = self.measured.inputs(now, Vec::new(), current.as_deref());
        checker.note_anomalies(&anomalies);
        let weights = self.policy.weights(&self.config.fleet, &inputs);
        let moved_frac =
            current.as_ref().map_or(0.0, |current| router_user::plan::decide::gate::moved_frac(&inputs, current, &weights));
        self.published = Some(Arc::new(Published { generation: self.next_generation()?, snapshot: None, weights }));
        Ok(Step { has_published: true, moved_frac })
    }

    fn current_snapshot(&self) -> Option<Arc<Snapshot>> {
        self.published.as_ref()?.snapshot.clone()
    }

    fn next_generation(&self) -> Result<u64> {
        let last = Generation(self.published.as_ref().map_or(0, |published| published.generation));
        Ok(Generation::after(last, last.epoch()).ok_or_else(|| anyhow!("no generation after {last}"))?.0)
    }

    /// Numbers and seals `content`, and puts it where data planes look.
    fn publish(&mut self, now: Duration, content: Snapshot) -> Result<Arc<Snapshot>> {
        let generation = self.next_generation()?;
        let numbered = Snapshot { generation, published_unix_ms: now.as_millis() as u64, ..content };
        let snapshot = Arc::new(numbered.sealed());
        self.canary.on_published(now, &self.config.fleet, &snapshot);
        if snapshot.target_clusters.is_empty() {
            self.last_for_all = Some(Arc::clone(&snapshot));
        }
        // As a controller reads it back: the current weights are the published ones, not the
        // planned ones.
        let weights = self.canary.current_weights(&self.config.fleet, &snapshot);
        let weights = weights.ok_or_else(|| anyhow!("nobody knows the current weights"))?;
        self.published = Some(Arc::new(Published { generation, snapshot: Some(Arc::clone(&snapshot)), weights }));
        Ok(snapshot)
    }
}
