//! The canary as a state machine: events in, one action out.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::control::canary::cluster::{CanaryCluster, TrialResult};
use crate::model::Fleet;
use crate::plan::{Inputs, RouteWeights};
use crate::protocol::DemandReport;
use crate::publish::build;
use crate::publish::snapshot::Snapshot;

/// The step that follows an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Nothing,
    /// Keep the current weights, for this reason.
    HoldBack(String),
    /// Publish this for all clusters.
    Publish(Snapshot),
    /// Publish this for the canary's cluster alone; it names that cluster. Then tell
    /// [`Canary::on_published`].
    Trial(Snapshot),
    /// Publish the last snapshot for all clusters again. A trial runs whose controller has ended.
    TakeBack {
        reason: String,
    },
}

/// A plan to publish, and the weights that it would replace.
#[derive(Clone, Copy, Debug)]
pub struct NextPlan<'a> {
    pub fleet: &'a Fleet,
    pub inputs: &'a Inputs,
    pub current: Option<&'a Arc<Snapshot>>,
    /// The current weights of all clusters; `None` if they are unknown.
    pub current_weights: Option<&'a [RouteWeights]>,
    /// The weights of the new plan, and its snapshot.
    pub weights: &'a [RouteWeights],
    pub content: &'a Snapshot,
    /// True if the plan replaces weights that break a rule, so that it cannot wait for a trial.
    pub is_urgent: bool,
}

/// Decides whether a plan goes on trial, and what is published after the trial.
#[derive(Debug)]
pub struct Canary {
    /// `None` where the configuration names no cluster for trials.
    cluster: Option<CanaryCluster>,
    /// A trial that was asked for and is not published yet.
    pending: Option<Pending>,
}

/// The data with which a trial begins once its snapshot has a generation.
#[derive(Debug)]
struct Pending {
    inputs: Inputs,
    current: Vec<RouteWeights>,
    mix: Vec<RouteWeights>,
    content: Snapshot,
    before: Arc<Snapshot>,
}

impl Canary {
    pub fn new(config: &Config) -> Self {
        Self { cluster: CanaryCluster::new(config), pending: None }
    }

    /// Takes a data plane's report.
    pub fn on_report(&mut self, now: Duration, report: &DemandReport) {
        if let Some(cluster) = &mut self.cluster {
            cluster.observe(now, report);
        }
    }

    /// Ends a trial whose time is over. `current` is the last published snapshot.
    pub fn on_tick(&mut self, now: Duration, fleet: &Fleet, current: Option<&Snapshot>) -> Action {
        let Some(on_trial) = current.filter(|current| !current.target_clusters.is_empty()) else {
            // A snapshot that could not wait was published for all clusters.
            self.cluster.as_mut().and_then(|cluster| cluster.end(now, None));
            return Action::Nothing;
        };
        let names = on_trial.target_clusters.join(", ");
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| cluster.is_trying(on_trial.generation)) else {
            self.cluster.as_mut().and_then(|cluster| cluster.end(now, None));
            let reason = format!("the trial of its successor in cluster {names} ended with its controller");
            return Action::TakeBack { reason };
        };
        let Some(result) = cluster.result(now) else { return Action::Nothing };
        let failed = match &result {
            TrialResult::Good(_) => None,
            TrialResult::Bad(figures) => build::current_weights(fleet, on_trial).map(|weights| (weights, figures.clone())),
        };
        let Some(trial) = cluster.end(now, failed) else { return Action::Nothing };
        let (content, reason) = match result {
            TrialResult::Good(figures) => (trial.content, format!("its trial in cluster {names} went well: {figures}")),
            TrialResult::Bad(figures) => {
                (Snapshot::clone(&trial.before), format!("its successor failed its trial in cluster {names}: {figures}"))
            }
        };
        Action::Publish(Snapshot { reason, target_clusters: Vec::new(), ..content })
    }

    /// Decides how to publish a plan that passed the publish gate.
    pub fn on_plan(&mut self, now: Duration, next: &NextPlan<'_>) -> Action {
        self.pending = None;
        let mut content = next.content.clone();
        if let Some(current) =
            next.current.filter(|current| next.current_weights.is_none() && !current.target_clusters.is_empty())
        {
            content.reason = format!("the plan on trial in cluster {} breaks a rule by now", current.target_clusters.join(", "));
        }
        let Some(cluster) = self.cluster.as_ref().filter(|_| !next.is_urgent) else { return Action::Publish(content) };
        if let Some(reason) = cluster.holds_back(now, next.inputs, next.weights) {
            return Action::HoldBack(reason);
        }
        let (Some(current), Some(before)) = (next.current_weights, next.current) else { return Action::Publish(content) };
        let Some(mix) = cluster.mix(next.fleet, next.inputs, current, next.weights) else { return Action::Publish(content) };
        let reason = format!("on trial in cluster {}: {}", cluster.name, content.reason);
        let shown = Snapshot { target_clusters: vec![cluster.name.clone()], reason, ..content.clone() };
        let (inputs, current, before) = (next.inputs.clone(), current.to_vec(), Arc::clone(before));
        self.pending = Some(Pending { inputs, current, mix, content, before });
        Action::Trial(shown)
    }

    /// Takes a snapshot that was published at `now`. If it is the pending trial, the trial begins.
    /// After a good trial all clusters get its failover weights.
    pub fn on_published(&mut self, now: Duration, fleet: &Fleet, published: &Snapshot) {
        let pending = self.pending.take().filter(|_| !published.target_clusters.is_empty());
        if let (Some(cluster), Some(Pending { inputs, current, mix, content, before })) = (&mut self.cluster, pending) {
            let content = Snapshot { failovers: published.failovers.clone(), ..content };
            cluster.begin(now, fleet, &inputs, &current, mix, (published.generation, content, before));
        }
    }

    /// The current weights of all clusters; `None` if a trial runs that this controller did not
    /// begin.
    pub fn current_weights(&self, fleet: &Fleet, current: &Snapshot) -> Option<Vec<RouteWeights>> {
        if current.target_clusters.is_empty() {
            return build::current_weights(fleet, current);
        }
        Some(self.cluster.as_ref()?.trial.as_ref()?.mix.clone())
    }

    /// The trial in words, for operators.
    pub fn describe(&self, now: Duration) -> Option<String> {
        self.cluster.as_ref()?.describe(now)
    }
}
