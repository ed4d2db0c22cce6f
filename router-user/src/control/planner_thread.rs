//! The thread that plans. It owns the optimiser, which starts each plan from where the last one
//! ended.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::config::Config;
use crate::control::cycle::{Conclusion, CycleError, Planning, completed, conclude, failover_weights, restated};
use crate::model::Fleet;
use crate::plan::decide::failover::Failover;
use crate::plan::{Inputs, Plan, RouteWeights};

/// Share of the period between two plans that the solver may take. The rest is for the check of the
/// plan, and for the decision.
const BUDGET_FRAC: f64 = 0.8;

/// Least time that the solver gets, however short the period: a first plan of a large fleet takes
/// most of it.
const BUDGET_LEAST: Duration = Duration::from_secs(1);

/// Jobs that wait. The controller asks for one plan, or the failover weights of one, at a time.
const QUEUE: usize = 2;

/// Makes a plan of a fleet and its inputs, from the current weights.
pub type PlanFn = Box<dyn FnMut(&Fleet, &Inputs, Option<&[RouteWeights]>) -> Result<Plan, CycleError> + Send>;

/// Access to the thread; it ends when this is dropped.
#[derive(Clone, Debug)]
pub(crate) struct PlannerThread {
    jobs: SyncSender<Job>,
}

/// The inputs of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanJob {
    pub(crate) inputs: Inputs,
    /// The current weights; routes may be missing where the fleet has changed.
    pub(crate) current: Option<Vec<RouteWeights>>,
    /// The changes of the fleet since the current weights were published.
    pub(crate) change: Option<String>,
}

/// A plan, and the decision between it and the current weights.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) job: PlanJob,
    pub(crate) plan: Plan,
    pub(crate) conclusion: Conclusion,
}

enum Job {
    Plan(Box<PlanJob>, oneshot::Sender<Result<Box<Planned>, CycleError>>),
    Failover { inputs: Box<Inputs>, weights: Vec<RouteWeights>, done: oneshot::Sender<Vec<Failover>> },
}

impl PlannerThread {
    /// Starts the thread, with the optimiser or with `plan` in its place.
    ///
    /// Errors: the machine has no thread left.
    pub(crate) fn start(config: Arc<Config>, plan: Option<PlanFn>) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(QUEUE);
        let plan = plan.unwrap_or_else(|| {
            let mut planning = Planning::new(config.control.period.mul_f64(BUDGET_FRAC).max(BUDGET_LEAST));
            Box::new(move |fleet, inputs, current| planning.plan(fleet, inputs, current))
        });
        std::thread::Builder::new().name("ilb-planner".to_owned()).spawn(move || work(&config, plan, &inbox))?;
        Ok(Self { jobs })
    }

    /// Plans, and decides between the plan and the current weights. Where the optimiser fails, the
    /// greedy plan replaces it.
    ///
    /// Errors: why there is no plan at all.
    pub(crate) async fn plan(&self, job: PlanJob) -> Result<Box<Planned>, CycleError> {
        let (done, answer) = oneshot::channel();
        self.jobs.try_send(Job::Plan(Box::new(job), done)).map_err(|_| CycleError::Planner)?;
        answer.await.map_err(|_| CycleError::Planner)?
    }

    /// The failover weights of `weights`; none if that fails, because a plan is worth publishing
    /// without them.
    pub(crate) async fn failover_weights(&self, inputs: Inputs, weights: Vec<RouteWeights>) -> Vec<Failover> {
        let (done, answer) = oneshot::channel();
        if self.jobs.try_send(Job::Failover { inputs: Box::new(inputs), weights, done }).is_err() {
            return Vec::new();
        }
        answer.await.unwrap_or_default()
    }
}

fn work(config: &Config, mut plan: PlanFn, inbox: &Receiver<Job>) {
    while let Ok(job) = inbox.recv() {
        // The sender may have stopped waiting.
        match job {
            Job::Plan(job, done) => {
                let _ = done.send(planned(&config.fleet, &mut plan, *job).map(Box::new));
            }
            Job::Failover { inputs, weights, done } => {
                let _ = done.send(failover_weights(&config.fleet, &inputs, &weights));
            }
        }
    }
}

fn planned(fleet: &Fleet, plan: &mut PlanFn, job: PlanJob) -> Result<Planned, CycleError> {
    let current = job.current.clone().and_then(|current| completed(fleet, &job.inputs, current));
    let plan = plan(fleet, &job.inputs, current.as_deref())?;
    let mut conclusion = conclude(fleet, &job.inputs, current.as_deref(), &plan);
    // Data planes know the fleet from snapshots, so a changed one is published even where the
    // weights stay.
    if let (Some(change), Some(current), None) = (&job.change, &current, &conclusion.published) {
        let reason = format!("the weights stay, and the fleet has changed: {change}");
        conclusion.published = restated(fleet, &job.inputs, current, &plan, &reason).ok();
    }
    Ok(Planned { job: PlanJob { current, ..job }, plan, conclusion })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn plans_come_back_and_start_from_the_current_weights() {
        let config = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("the example is legal");
        let inputs = Inputs::from_fleet(&config.fleet);
        let planner = PlannerThread::start(Arc::new(config), None).expect("a thread");
        let job = PlanJob { inputs: inputs.clone(), current: None, change: None };
        let first = planner.plan(job.clone()).await.expect("a plan").plan;
        let second = planner.plan(PlanJob { current: Some(first.weights()), ..job.clone() }).await.expect("a plan").plan;
        assert!(second.moved_frac < 1e-9 && !second.is_greedy, "{}", second.moved_frac);
        let broken = PlanJob { inputs: Inputs { demand_rps: Vec::new(), ..inputs }, ..job };
        let error = planner.plan(broken).await.expect_err("no inputs of this fleet").to_string();
        assert!(error.contains("demand has 0 entries, wanted 3"), "{error}");
    }
}
