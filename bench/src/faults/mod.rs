//! What clients notice when something else goes wrong: engines that misbehave, overload, floods and
//! wrong numbers, with ilb or another proxy in front.
//!
//! A run is a fleet of false engines as processes of their own, a proxy, and open-loop traffic of a
//! fixed seed. Each request carries its number, and engines note the numbers that reach them, so
//! that it is known where each request went, whatever became of it. Runs are independent; some are
//! under way at a time, because engines need little of the machine.

mod analysis;
mod args;
mod figures;
mod fleet;
mod front;
mod misbehaviour;
mod report;
mod rig;
mod scenario;
mod traffic;

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::origin::Origin;
pub use args::Args;
use args::{Case, Scenario};
use figures::Figures;
use front::Front;
use report::{Report, Row};
use rig::Bed;

/// The runs of one case with one proxy.
struct Batch {
    case: Case,
    front: Front,
    runs: Vec<JoinHandle<Result<Figures>>>,
}

pub async fn run(args: Args) -> Result<()> {
    let origin = Origin::here()?;
    let fronts = args.fronts()?;
    let slots = Rc::new(Semaphore::new(args.parallel()));
    let mut report = Report::new(origin, args.json)?;
    let mut batches = Vec::new();
    for case in args.cases() {
        for front in fronts.iter().filter(|front| front.is_ilb() || case.scenario().is_for_rivals()) {
            let start = |seed| tokio::task::spawn_local(one(case, front.clone(), seed, args.time, Rc::clone(&slots)));
            batches.push(Batch { case, front: front.clone(), runs: (1..=args.seeds()).map(start).collect() });
        }
    }
    for Batch { case, front, runs } in batches {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for run in runs {
            match run.await.context("a run ended early")? {
                Ok(figures) => found.push(figures),
                Err(error) => errors.push(format!("{error:#}")),
            }
        }
        report.add(Row {
            scenario: case.scenario().name(),
            case: case.label(),
            front: front.kind.to_string(),
            runs: found,
            errors,
        })?;
    }
    report.finish()?;
    let missed = report.missed();
    ensure!(!args.check || missed == 0, "{missed} cases missed a limit or failed");
    Ok(())
}

/// One run, when a slot is free.
async fn one(case: Case, front: Front, seed: u64, time: Option<Duration>, slots: Rc<Semaphore>) -> Result<Figures> {
    let _slot = slots.acquire().await.context("the slots stay open")?;
    let bed = Bed::new(front, seed)?;
    let (scenario, label, proxy) = (case.scenario().name(), case.label(), bed.front.kind);
    let result = match &case {
        Case::Engines(case) => scenario::engines::run(case, &bed).await,
        Case::Whole(scenario) => whole(*scenario, &bed, time).await,
    };
    match &result {
        Ok(_) => info!(scenario, case = label, %proxy, seed, "done"),
        Err(error) => warn!(scenario, case = label, %proxy, seed, error = format!("{error:#}"), "failed"),
    }
    result
}

/// One run of a scenario of one case.
async fn whole(scenario: Scenario, bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    match scenario {
        Scenario::Engines => bail!("engines has cases of its own"),
        Scenario::Alarms => scenario::alarms::run(bed, time).await,
        Scenario::Storm => scenario::storm::run(bed, time).await,
        Scenario::Flood => scenario::flood::run(bed, time).await,
        Scenario::HotKey => scenario::hot_key::run(bed, time).await,
        Scenario::Overload => scenario::overload::run(bed, time).await,
        Scenario::Beside => scenario::beside::run(bed, time).await,
        Scenario::Poison => scenario::poison::run(bed, time).await,
        Scenario::Cut => scenario::cut::run(bed).await,
        Scenario::Guess => scenario::guess::run(bed, time).await,
        Scenario::Tenfold => scenario::tenfold::run(bed, time).await,
    }
}
