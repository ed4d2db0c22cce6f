//! A new plan is tried in one cluster before the others follow, by way of every store.

use std::sync::Arc;
use std::time::Duration;

use router_user::admin::StatusView;
use router_user::clock::Clock;
use router_user::config;
use router_user::control::{self, Command, Controller, ControllerHandle, PinRequest};
use router_user::protocol::{DemandReport, EngineReport};
use router_user::publish::Generation;
use router_user::publish::snapshot::Snapshot;
use router_user::publish::store::{Held, HttpStore, Store};

use super::process::Process;
use super::{Etcd, PATIENCE, run};

const CANARY: &str = "\n[control]\nperiod = \"200ms\"\nhealth_period = \"3s\"\ncanary = \"b\"\ncanary_periods = 5\n";

async fn controller(folder: &std::path::Path) -> (ControllerHandle, HttpStore) {
    let example = include_str!("../../../../examples/three-regions.toml");
    let mut config = config::parse(&format!("{example}{CANARY}")).expect("legal");
    config.store.dir = folder.join("snapshots");
    // Nothing listens where the engines are said to be; their health must not make plans of its
    // own.
    config.control.health_period = Duration::from_secs(3_600);
    config.control.scrape_period = None;
    let controller = Controller::start(Arc::new(config), Clock::start(), None).expect("started");
    let address = control::serve(controller.clone(), "127.0.0.1:0".parse().expect("legal")).await.expect("served");
    (controller, HttpStore::new(&format!("http://{address}")))
}

async fn newer(store: &HttpStore, held: &Snapshot) -> Arc<Snapshot> {
    let newer = tokio::time::timeout(PATIENCE, store.newer_than(Held::of(held))).await.expect("in time");
    newer.expect("answered").expect("there is one")
}

/// A first window so long that demand is known from then on, and stands still.
const SETTLED: Duration = Duration::from_secs(600);

/// How often answers are reported during a trial.
const ANSWERS_PERIOD: Duration = Duration::from_millis(600);

/// Demand of clusters b and c that wants other weights than the configured one, in requests a
/// minute.
const DEMAND: [(&str, u64); 2] = [("b", 7_200), ("c", 100)];

/// What a data plane of a cluster reports of a window: its share of `per_minute` arrivals, and how
/// long each of a hundred answers took.
fn report((cluster, per_minute): (&str, u64), window: Duration, generation: u64, mean_ms: f64) -> DemandReport {
    let engine = EngineReport {
        engine: "e2".to_owned(),
        attempts: 100,
        answers: 100,
        latency_ms_sum: 100.0 * mean_ms,
        ..EngineReport::default()
    };
    DemandReport {
        cluster: cluster.to_owned(),
        instance: "p".to_owned(),
        window_ms: window.as_millis() as u64,
        arrivals: vec![("chat".to_owned(), per_minute * window.as_millis() as u64 / 60_000)],
        generation,
        engines: vec![engine],
    }
}

/// A plan goes on trial after demand has changed; its answers take `after_ms` where answers took a
/// second before. Returns the snapshots before, during and after the trial.
async fn trial(store: &HttpStore, after_ms: f64) -> [Arc<Snapshot>; 3] {
    let before = store.newer_than(Held::default()).await.expect("answered").expect("there is one");
    assert!(before.target_clusters.is_empty(), "the first one is for all");
    for demand in DEMAND {
        store.report(&report(demand, SETTLED, before.generation, 1_000.0)).await.expect("taken");
    }
    let during = newer(store, &before).await;
    assert_eq!(during.target_clusters, ["b"], "{}", during.reason);
    assert!(during.reason.starts_with("on trial in cluster b: mean latency falls"), "{}", during.reason);
    let (reporting, generation) = (store.clone(), during.generation);
    // For as long as the test runs: a cluster that falls silent is another matter.
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(ANSWERS_PERIOD).await;
            for demand in DEMAND {
                reporting.report(&report(demand, ANSWERS_PERIOD, generation, after_ms)).await.expect("taken");
            }
        }
    });
    let after = newer(store, &during).await;
    assert!(after.target_clusters.is_empty(), "all follow, or go back");
    [before, during, after]
}

fn weights(snapshot: &Snapshot) -> Vec<&[router_user::publish::snapshot::Share]> {
    snapshot.routes.iter().map(|route| &route.weights[..]).collect()
}

#[test]
fn a_plan_that_holds_what_it_promised_is_for_all() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let (_controller, store) = controller(folder.path()).await;
        let [before, during, after] = trial(&store, 1_000.0).await;
        assert_eq!(weights(&after), weights(&during));
        assert_ne!(weights(&after), weights(&before));
        assert!(after.reason.starts_with("its trial in cluster b went well: "), "{}", after.reason);
    });
}

#[test]
fn a_plan_that_does_not_is_taken_back_and_not_tried_again_at_once() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let (controller, store) = controller(folder.path()).await;
        let [before, during, after] = trial(&store, 3_000.0).await;
        assert_eq!(weights(&after), weights(&before));
        assert!(after.reason.starts_with("its successor failed its trial in cluster b: "), "{}", after.reason);
        assert!(after.reason.contains("3000.0 ms met"), "{}", after.reason);
        let mut status = controller.status.clone();
        let is_back = |decision: &str| decision.starts_with("keep: held back, as it failed its trial: ");
        let held_back = status.wait_for(|status| is_back(&status.last_decision));
        let held_back = tokio::time::timeout(PATIENCE, held_back).await.map(|status| status.expect("runs").plans);
        let plans = held_back.unwrap_or_else(|_| panic!("not held back: {}", controller.status.borrow().last_decision));
        tokio::time::timeout(PATIENCE, status.wait_for(|s| s.plans >= plans + 3)).await.expect("plans").expect("runs");
        let in_force = controller.snapshots.borrow().clone().expect("published");
        assert_eq!(in_force.generation, after.generation, "{}", in_force.reason);

        // An operator may know better: a rollback to it is for all.
        let generation = Generation(during.generation);
        let back = controller.ask(|done| Command::Rollback { generation, ttl: None, done }).await.expect("kept");
        let back = store.read(Generation(back)).await.expect("kept");
        assert_eq!((back.target_clusters.len(), weights(&back)), (0, weights(&during)));
    });
}

#[test]
fn what_cannot_wait_skips_the_trial_and_ends_one() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let (controller, store) = controller(folder.path()).await;
        let before = store.newer_than(Held::default()).await.expect("answered").expect("there is one");
        for demand in DEMAND {
            store.report(&report(demand, SETTLED, before.generation, 1_000.0)).await.expect("taken");
        }
        let during = newer(&store, &before).await;
        assert_eq!(during.target_clusters, ["b"]);
        let weights = vec![("e1".to_owned(), 1.0)];
        let pin = PinRequest { cluster: "c".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() };
        controller.ask(|done| Command::Pin(pin, done)).await.expect("legal");
        let urgent = newer(&store, &during).await;
        assert!(urgent.target_clusters.is_empty() && urgent.reason.contains("set by hand"), "{}", urgent.reason);
        let mut status = controller.status.clone();
        tokio::time::timeout(PATIENCE, status.wait_for(|s| s.trial.is_none())).await.expect("it is over").expect("runs");
    });
}

#[test]
fn a_trial_that_its_controller_does_not_live_to_end_is_taken_back_by_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut published = None;
    // The whole controller ends with its runtime, as in a crash.
    run(async || {
        let (_controller, store) = controller(folder.path()).await;
        let before = store.newer_than(Held::default()).await.expect("answered").expect("there is one");
        for demand in DEMAND {
            store.report(&report(demand, SETTLED, before.generation, 1_000.0)).await.expect("taken");
        }
        let during = newer(&store, &before).await;
        published = Some((before, during));
    });
    let (before, during) = published.expect("both");
    assert_eq!(during.target_clusters, ["b"]);
    run(async || {
        let (_controller, store) = controller(folder.path()).await;
        let after = newer(&store, &during).await;
        assert!(after.target_clusters.is_empty() && after.reason.contains("ended with its controller"), "{}", after.reason);
        assert_eq!(weights(&after), weights(&before));
    });
}

#[test]
fn data_planes_of_other_clusters_pass_over_a_trial_in_every_store() {
    run(async || {
        let etcd = Etcd::start();
        let file = |store: &str| {
            let example = include_str!("../../../../examples/three-regions.toml");
            let canary = CANARY.replace("canary_periods = 5", "canary_periods = 20");
            format!("{example}{canary}[store]\ndir = \"snapshots\"\n{store}\n")
        };
        let by_etcd = file(&format!("etcd = [\"{}\"]\nprefix = \"/test\"\nlease = \"2s\"", etcd.address()));
        let control = Process::start(&["control"], &by_etcd);
        let by_http = file(&format!("url = \"http://{}\"", control.listen));
        let by_dir = file(&format!("url = \"file://{}\"", control.folder.path().join("snapshots").display()));
        let stores = [&by_etcd, &by_http, &by_dir];
        let start = |cluster: &'static str| stores.map(|file| Process::start(&["proxy", "--cluster", cluster], file));
        let (others, canaries) = (start("a"), start("b"));
        let is_published = |status: &StatusView| status.generation > Some(Generation(0));
        for plane in others.iter().chain(&canaries) {
            plane.until("it follows", is_published).await;
        }
        // Data planes without traffic report that demand falls, and sooner or later a plan is on
        // trial.
        let on_trial = |status: &StatusView| status.control.as_ref().is_some_and(|control| control.trial.is_some());
        let trial = control.until("a trial", on_trial).await.generation.expect("published");
        for plane in &others {
            let passes = |status: &StatusView| status.proxy.as_ref().is_some_and(|proxy| proxy.not_addressed == Some(trial));
            let status = plane.until("it passes over the trial", passes).await;
            assert!(status.generation < Some(trial), "{status:?}");
            assert!(plane.ask(&["status"]).contains("is on trial in another cluster"));
        }
        for plane in &canaries {
            plane.until("it takes part in the trial", |status| status.generation >= Some(trial)).await;
        }
        // One that comes now has never seen what the others hold, and finds it.
        let late = Process::start(&["proxy", "--cluster", "c"], &by_etcd);
        let status = late.until("it serves by what is for all", is_published).await;
        assert!(status.generation != Some(trial), "{status:?}");
        assert!(control.ask(&["snapshots"]).contains(", for b"));
        for plane in others.iter().chain(&canaries).chain([&late]) {
            plane.until("it follows to the end of the trial", |status| status.generation > Some(trial)).await;
        }
        assert_eq!(trial.epoch(), 1);
    });
}
