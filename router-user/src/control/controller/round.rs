//! One round, in this order: a new leader takes over the last leader's state, a trial may end, a
//! plan is made, published and explained. Each step begins here and returns as an event.

use std::path::PathBuf;
use std::sync::Arc;

use crate::control::canary::{Action, NextPlan};
use crate::control::controller::marks::{label, relabelled};
use crate::control::controller::status::Explained;
use crate::control::controller::task::{Controller, Event, Outcome, Publication};
use crate::control::cycle::{CycleError, lost_regions};
use crate::control::engine_orders;
use crate::control::estimate::state::EnginePresent;
use crate::control::leadership::publisher::Kept;
use crate::control::pins;
use crate::control::planner_thread::{PlanJob, Planned};
use crate::model::Fleet;
use crate::plan::decide::gate::{Decision, PublishReason};
use crate::plan::decide::regions::RegionLoss;
use crate::plan::explain::{report, shed};
use crate::plan::verify;
use crate::plan::{EngineEvaluation, Inputs, RouteWeights, evaluate};
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{StoreError, write_whole};
use crate::publish::{Generation, build};

impl Controller {
    /// Begins a round if one is wanted, and neither another one nor an order is under way.
    pub(super) fn begin_round(&mut self) {
        if !self.wants_round || self.has_round || self.has_order {
            return;
        }
        (self.wants_round, self.has_round) = (false, true);
        if !self.has_heartbeat {
            self.has_heartbeat = true;
            let archive = self.archive.clone();
            self.work.spawn(async move {
                archive.heartbeat().await;
                Event::HeartbeatSent
            });
        }
        let publisher = Arc::clone(&self.publisher);
        self.work.spawn(async move { Event::TookOver(publisher.lock().await.take_over().await) });
    }

    /// Ends a round and records its decision.
    fn end_round(&mut self, decision: Option<String>) {
        self.has_round = false;
        if let Some(decision) = decision {
            self.status.last_decision = decision;
        }
        self.publish_status();
    }

    fn fail_round(&mut self, error: &CycleError) {
        tracing::error!(%error, "keeping the previous weights");
        self.status.failures += 1;
        self.end_round(Some(error.to_string()));
    }

    /// A new leader takes over the last leader's state; another controller has nothing to take
    /// over.
    pub(super) fn on_take_over(&mut self, outcome: Result<Kept, StoreError>) {
        let is_new = self.status.standby_reason.is_some() || self.status.plans == 0;
        self.status.standby_reason = match outcome {
            Err(error) => Some(CycleError::TakeOver(error).to_string()),
            Ok(Kept { pins, orders }) => {
                pins.iter().for_each(|json| self.adopt_pins(json));
                orders.iter().for_each(|json| self.adopt_orders(json));
                self.candidacy.standby_reason()
            }
        };
        if let Some(current) = self.candidacy.current().filter(|_| is_new) {
            self.measured.start_from(self.clock.now(), &current);
        }
        if let Some(reason) = &self.status.standby_reason {
            let decision = format!("stands by: {reason}");
            return self.end_round(Some(decision));
        }
        let current = self.candidacy.current();
        match self.canary.on_tick(self.clock.now(), &self.config.fleet, current.as_deref()) {
            Action::TakeBack { reason } => {
                let archive = self.archive.clone();
                self.work.spawn(async move { Event::FoundBefore(archive.last_for_all().await, reason) });
            }
            Action::Publish(content) => {
                tracing::info!(reason = content.reason, "a trial is over");
                self.finish_trial(Some(content));
            }
            Action::Nothing | Action::HoldBack(_) | Action::Trial(_) => self.begin_plan(),
        }
    }

    /// Takes over the pins that another leader kept.
    fn adopt_pins(&mut self, json: &[u8]) {
        let moment = self.moment();
        match self.pins.adopt(json, &self.config.fleet, moment) {
            Ok(()) => self.keep_adopted(self.pins.file().to_owned(), pins::to_json(self.pins.all(), moment)),
            Err(error) => tracing::warn!(%error, "the last leader's pins are not active"),
        }
    }

    /// Takes over the orders about engines that another leader kept.
    fn adopt_orders(&mut self, json: &[u8]) {
        let moment = self.moment();
        match self.engine_orders.adopt(json, &self.config.fleet, moment) {
            Ok(()) => {
                let json = engine_orders::to_json(self.engine_orders.all(), moment);
                self.keep_adopted(self.engine_orders.file().to_owned(), json);
            }
            Err(error) => tracing::warn!(%error, "the last leader's orders about engines are not active"),
        }
    }

    fn keep_adopted(&mut self, file: PathBuf, json: Vec<u8>) {
        self.revision += 1;
        self.work.spawn_blocking(move || {
            if let Err(error) = write_whole(&file, &json) {
                tracing::warn!(%error, file = %file.display(), "what the last leader kept is active, but not on this disk");
            }
            Event::Nothing
        });
    }

    /// Publishes the outcome of a trial for all clusters. If it breaks a rule by now, the next plan
    /// is published for all clusters instead.
    pub(super) fn finish_trial(&mut self, content: Option<Snapshot>) {
        let config = Arc::clone(&self.config);
        let inputs = self.inputs(None);
        let is_legal = |content: &Snapshot| {
            let is_of_this_fleet = build::changes(&config.fleet, content).is_none();
            let weights = build::current_weights(&config.fleet, content).filter(|_| is_of_this_fleet);
            weights.is_some_and(|weights| verify::legal(&config.fleet, &inputs, &weights).is_ok())
        };
        let Some(content) = content.filter(is_legal) else { return self.begin_plan() };
        let publisher = Arc::clone(&self.publisher);
        self.work.spawn(async move { Event::TrialEnded(publisher.lock().await.publish(content).await) });
    }

    pub(super) fn on_trial_ended(&mut self, outcome: Result<Arc<Snapshot>, StoreError>) {
        match outcome {
            Ok(_) => {
                self.status.published += 1;
                self.begin_plan();
            }
            Err(error) => self.fail_round(&CycleError::Publish(error)),
        }
    }

    fn begin_plan(&mut self) {
        let current = self.current_weights();
        let inputs = self.inputs(current.as_deref());
        let snapshot = self.candidacy.current();
        let change = snapshot.as_ref().and_then(|snapshot| build::changes(&self.config.fleet, snapshot));
        let (planner, clock, revision) = (self.planner.clone(), self.clock, self.revision);
        let started = clock.now();
        self.work.spawn(async move {
            let planned = planner.plan(PlanJob { inputs, current, change }).await;
            let took_ms = (clock.now() - started).as_secs_f64() * 1e3;
            let generation = snapshot.map(|snapshot| snapshot.generation);
            Event::Planned(Box::new(Outcome { planned, revision, generation, took_ms }))
        });
    }

    /// Decides how to publish a plan, unless its inputs have changed meanwhile.
    pub(super) fn on_planned(&mut self, outcome: Outcome) {
        self.status.plans += 1;
        self.status.last_plan_ms = outcome.took_ms;
        let planned = match outcome.planned {
            Ok(planned) => *planned,
            Err(error) => return self.fail_round(&error),
        };
        let current = self.candidacy.current();
        let is_outdated = self.has_order
            || outcome.revision != self.revision
            || outcome.generation != current.as_ref().map(|current| current.generation)
            || self.candidacy.standby_reason().is_some();
        if is_outdated {
            self.wants_round = true;
            return self.end_round(None);
        }
        let Planned { job: PlanJob { inputs, current: current_weights, change }, plan, conclusion } = planned;
        self.status.expected_ms = conclusion.expected_ms;
        let active = conclusion.published.as_ref().map(|(plan, _)| plan.weights()).or_else(|| current_weights.clone());
        self.present = active.map_or_else(Vec::new, |weights| present(&self.config.fleet, &inputs, &weights));
        let decision = conclusion.decision.to_string();
        let Some((published, mut content)) = conclusion.published else {
            if let Some(current) = current.as_ref().filter(|_| self.explained.borrow().is_none()) {
                // After a restart the plan that kept the weights explains them, because it was made
                // from them.
                let generation = Generation(current.generation);
                self.explained.send_replace(Some(Arc::new(Explained { generation, inputs, plan })));
            }
            self.status.last_decision = decision;
            return self.relabel(current.as_deref());
        };
        // No operator chose weights that are only kept, such as those of a silent cluster.
        label(&mut content.routes, &self.by_hand);
        let is_illegal = matches!(conclusion.decision, Decision::Publish(PublishReason::First | PublishReason::Illegal(_)));
        let weights = published.weights();
        let next = NextPlan {
            fleet: &self.config.fleet,
            inputs: &inputs,
            current: current.as_ref(),
            current_weights: current_weights.as_deref(),
            weights: &weights,
            content: &content,
            is_urgent: change.is_some() || is_illegal,
        };
        let content = match self.canary.on_plan(self.clock.now(), &next) {
            Action::Publish(content) | Action::Trial(content) => content,
            Action::HoldBack(reason) => return self.end_round(Some(reason)),
            Action::Nothing | Action::TakeBack { .. } => return self.end_round(Some(decision)),
        };
        let (planner, publisher) = (self.planner.clone(), Arc::clone(&self.publisher));
        let publication = Box::new(Publication { inputs, plan: published, decision });
        self.work.spawn(async move {
            let failover = planner.failover_weights(publication.inputs.clone(), weights).await;
            let content = Snapshot { failovers: build::failovers(&failover), ..content };
            let outcome = publisher.lock().await.publish(content).await;
            Event::Published(publication, outcome)
        });
    }

    /// Publishes the current weights with true marks, where an operator has set or freed weights
    /// and they stay as they are, or an order about an engine has changed or expired.
    fn relabel(&mut self, current: Option<&Snapshot>) {
        let orders = self.engine_orders.marks();
        let relabelled = current.and_then(|current| relabelled(current, &self.by_hand, &orders.lock()));
        let Some(content) = relabelled else { return self.end_round(None) };
        let publisher = Arc::clone(&self.publisher);
        self.work.spawn(async move { Event::Relabelled(publisher.lock().await.publish(content).await) });
    }

    pub(super) fn on_relabelled(&mut self, outcome: Result<Arc<Snapshot>, StoreError>) {
        match outcome {
            Ok(_) => {
                self.status.published += 1;
                self.end_round(None);
            }
            Err(error) => self.fail_round(&CycleError::Publish(error)),
        }
    }

    pub(super) fn on_published(&mut self, publication: Publication, outcome: Result<Arc<Snapshot>, StoreError>) {
        let snapshot = match outcome {
            Ok(snapshot) => snapshot,
            Err(error) => return self.fail_round(&CycleError::Publish(error)),
        };
        let Publication { inputs, plan, decision } = publication;
        let generation = Generation(snapshot.generation);
        self.canary.on_published(self.clock.now(), &self.config.fleet, &snapshot);
        tracing::info!(%generation, objective_ms = snapshot.objective_ms, reason = decision, "published");
        self.status.published += 1;
        let explained = Arc::new(Explained { generation, inputs, plan });
        self.explained.send_replace(Some(Arc::clone(&explained)));
        if !self.has_check {
            self.has_check = true;
            let config = Arc::clone(&self.config);
            self.work.spawn_blocking(move || {
                let Explained { inputs, plan, .. } = &*explained;
                let sheds = shed::shed_bill(&config.fleet, inputs, plan);
                let mut lines: Vec<String> = sheds.iter().map(ToString::to_string).collect();
                lines.extend(report::detours(&config.fleet, inputs, plan).iter().map(ToString::to_string));
                Event::Checked(generation, lost_regions(&config.fleet, inputs), lines)
            });
        }
        self.end_round(Some(decision));
    }

    /// Computes the shed report and the region check of a published plan.
    pub(super) fn on_checked(&mut self, generation: Generation, regions: Vec<RegionLoss>, lines: &[String]) {
        self.has_check = false;
        for line in lines {
            tracing::warn!(%generation, "{line}");
        }
        for loss in regions.iter().filter(|loss| loss.shortfall_rps > 0.0) {
            if !self.status.regions.iter().any(|known| known.region == loss.region && known.shortfall_rps > 0.0) {
                tracing::warn!(%generation, "{loss}");
            }
        }
        self.status.regions = regions;
        self.publish_status();
    }
}

/// Load, capacity and latency of each engine under `weights`.
fn present(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Vec<EnginePresent> {
    let of = |engine: &EngineEvaluation| EnginePresent {
        capacity_rps: engine.capacity_rps,
        load_rps: engine.load_rps,
        latency_ms: engine.latency_ms,
    };
    evaluate(fleet, inputs, weights).engines.iter().map(of).collect()
}
