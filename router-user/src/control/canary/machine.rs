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

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Nothing,
    /// Keep what is in force, for this reason.
    HoldBack(String),
    /// Publish this for all clusters.
    Publish(Snapshot),
    /// Publish this for the canary's cluster alone; it names that cluster. Then tell
    /// [`Canary::on_published`].
    Trial(Snapshot),
    /// Publish again what was for all last: a trial is in force whose controller did not live to
    /// end it.
    TakeBack {
        reason: String,
    },
}

/// A plan that is to be published, and what it would replace.
#[derive(Clone, Copy, Debug)]
pub struct NextPlan<'a> {
    pub fleet: &'a Fleet,
    pub inputs: &'a Inputs,
    pub current: Option<&'a Arc<Snapshot>>,
    /// The weights of `current`, everywhere together; `None` where nobody knows them.
    pub current_weights: Option<&'a [RouteWeights]>,
    /// The weights of the new plan, and its snapshot.
    pub weights: &'a [RouteWeights],
    pub content: &'a Snapshot,
    /// Whether it replaces what breaks a rule, and so cannot wait for a trial.
    pub is_urgent: bool,
}

/// Decides whether plans go on trial, and what follows from a trial.
#[derive(Debug)]
pub struct Canary {
    /// `None` where the configuration names no cluster for trials.
    cluster: Option<CanaryCluster>,
    /// A trial that was asked for and is not published yet.
    pending: Option<Pending>,
}

/// What a trial needs once it has a number.
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

    /// Ends a trial whose time is over. `current` is what is in force.
    pub fn on_tick(&mut self, now: Duration, fleet: &Fleet, current: Option<&Snapshot>) -> Action {
        let Some(on_trial) = current.filter(|current| !current.target_clusters.is_empty()) else {
            // Something that could not wait was published to all.
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

    /// Decides how a plan is published that is worth publishing.
    pub fn on_plan(&mut self, now: Duration, next: &NextPlan<'_>) -> Action {
        self.pending = None;
        let mut content = next.content.clone();
        if let Some(current) =
            next.current.filter(|current| next.current_weights.is_none() && !current.target_clusters.is_empty())
        {
            content.reason = format!("what was on trial in cluster {} breaks a rule by now", current.target_clusters.join(", "));
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

    /// A snapshot was published at `now`: if it is the trial that was asked for, that begins. All
    /// clusters get its failover weights in the end.
    pub fn on_published(&mut self, now: Duration, fleet: &Fleet, published: &Snapshot) {
        let pending = self.pending.take().filter(|_| !published.target_clusters.is_empty());
        if let (Some(cluster), Some(Pending { inputs, current, mix, content, before })) = (&mut self.cluster, pending) {
            let content = Snapshot { failovers: published.failovers.clone(), ..content };
            cluster.begin(now, fleet, &inputs, &current, mix, (published.generation, content, before));
        }
    }

    /// The weights of `current`, everywhere together; `None` where nobody knows what is in force
    /// where.
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
