//! The thread that plans: it owns the optimiser, which starts each plan from where the last one ended.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::config::Config;
use crate::control::cycle::Planning;
use crate::plan::decide::failover::Alternate;
use crate::plan::decide::regions::RegionLoss;
use crate::plan::{Inputs, Plan, RouteWeights};

/// Share of the period between two plans that the solver may take: the rest is for the check, and for everything else of a tick.
const BUDGET_FRAC: f64 = 0.8;

/// A period shorter than this still gives the solver this long: a first plan of a large fleet takes most of it.
const LEAST_BUDGET: Duration = Duration::from_secs(1);

/// Plans that wait: the controller asks for one at a time.
const QUEUE: usize = 1;

/// Access to the thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Solver {
    jobs: SyncSender<Job>,
}

enum Job {
    Plan { inputs: Inputs, held: Option<Vec<RouteWeights>>, done: oneshot::Sender<Result<Plan, String>> },
    Alternates { inputs: Inputs, weights: Vec<RouteWeights>, done: oneshot::Sender<Vec<Alternate>> },
    Regions { inputs: Inputs, done: oneshot::Sender<Vec<RegionLoss>> },
}

impl Solver {
    /// Errors: the machine has no thread left.
    pub(crate) fn start(config: Arc<Config>) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(QUEUE);
        std::thread::Builder::new().name("ilb-solver".to_owned()).spawn(move || work(&config, &inbox))?;
        Ok(Self { jobs })
    }

    /// Plans for `inputs` from the `held` weights. Where the optimiser fails, the plan is one that was made without it.
    ///
    /// Errors: why there is no plan at all.
    pub(crate) async fn plan(&self, inputs: Inputs, held: Option<Vec<RouteWeights>>) -> Result<Plan, String> {
        let (done, answer) = oneshot::channel();
        let gone = |_| "the solver thread is gone".to_owned();
        // The queue has room: the last plan was waited for.
        self.jobs.send(Job::Plan { inputs, held, done }).map_err(|_| gone(()))?;
        answer.await.map_err(|_| gone(()))?
    }

    /// What `weights` become when engines are lost; nothing if that fails, since weights are worth publishing without.
    pub(crate) async fn alternates(&self, inputs: Inputs, weights: Vec<RouteWeights>) -> Vec<Alternate> {
        let (done, answer) = oneshot::channel();
        if self.jobs.send(Job::Alternates { inputs, weights, done }).is_err() {
            return Vec::new();
        }
        answer.await.unwrap_or_default()
    }

    /// What the loss of each region would mean; nothing if that fails.
    pub(crate) async fn region_losses(&self, inputs: Inputs) -> Vec<RegionLoss> {
        let (done, answer) = oneshot::channel();
        if self.jobs.send(Job::Regions { inputs, done }).is_err() {
            return Vec::new();
        }
        answer.await.unwrap_or_default()
    }
}

fn work(config: &Config, inbox: &Receiver<Job>) {
    let budget = config.control.period.mul_f64(BUDGET_FRAC).max(LEAST_BUDGET);
    let mut planning = Planning::new(budget);
    while let Ok(job) = inbox.recv() {
        // Whoever asked may have stopped waiting.
        match job {
            Job::Plan { inputs, held, done } => {
                let _ = done.send(planning.plan(&config.fleet, &inputs, held.as_deref()));
            }
            Job::Regions { inputs, done } => {
                let _ = done.send(planning.region_losses(&config.fleet, &inputs));
            }
            Job::Alternates { inputs, weights, done } => {
                let _ = done.send(planning.alternates(&config.fleet, &inputs, &weights));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn plans_come_back_and_start_from_the_held_weights() {
        let config = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("the example is legal");
        let inputs = Inputs::from_fleet(&config.fleet);
        let solver = Solver::start(Arc::new(config)).expect("a thread");
        let first = solver.plan(inputs.clone(), None).await.expect("a plan");
        let second = solver.plan(inputs.clone(), Some(first.weights())).await.expect("a plan");
        assert!(second.moved_frac < 1e-9 && !second.is_greedy, "{}", second.moved_frac);
        let broken = Inputs { demand_rps: Vec::new(), ..inputs };
        let error = solver.plan(broken, None).await.expect_err("no inputs of this fleet");
        assert!(error.contains("demand has 0 entries, wanted 3"), "{error}");
    }
}
