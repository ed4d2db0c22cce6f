//! A controller that starts where another one, or itself in an earlier process, has published
//! before: what it plans with.

use std::sync::Arc;
use std::time::Duration;

use router_user::control::{Command, ControllerHandle, Freshness};
use router_user::protocol::DemandReport;
use router_user::publish::snapshot::Snapshot;
use tokio::time::timeout;

use super::{EXAMPLE, Etcd, PATIENCE, controller, run};

/// True demand in requests/s: far from the configured 90, 120 and 40.
const TRUTH: [(&str, u64); 3] = [("a", 40), ("b", 170), ("c", 20)];
/// A first window so long that demand is known from then on.
const SETTLED: Duration = Duration::from_secs(600);

async fn report(controller: &ControllerHandle, window: Duration) {
    for (cluster, rps) in TRUTH {
        let report = DemandReport {
            cluster: cluster.to_owned(),
            instance: "p".to_owned(),
            window_ms: window.as_millis() as u64,
            arrivals: vec![("chat".to_owned(), rps * window.as_millis() as u64 / 1_000)],
            ..DemandReport::default()
        };
        controller.ask(|done| Command::Report(report, done)).await.expect("taken");
    }
}

/// Waits for a snapshot that is planned for about the true demand.
async fn settled(controller: &ControllerHandle) -> Arc<Snapshot> {
    report(controller, SETTLED).await;
    let is_true = |snapshot: &Snapshot| {
        let near = |(route, (_, rps)): (&router_user::publish::snapshot::Route, (&str, u64))| {
            (route.demand_rps / rps as f64 - 1.0).abs() < 0.05
        };
        snapshot.routes.iter().zip(TRUTH).all(near)
    };
    let mut snapshots = controller.snapshots.clone();
    let found = timeout(PATIENCE, snapshots.wait_for(|s| s.as_deref().is_some_and(is_true))).await;
    let found = found.expect("in time").expect("runs").clone().expect("there");
    plans(controller, 30).await;
    controller.snapshots.borrow().clone().unwrap_or(found)
}

async fn plans(controller: &ControllerHandle, count: u64) {
    let mut status = controller.status.clone();
    let before = status.borrow().plans;
    timeout(PATIENCE, status.wait_for(|s| s.plans >= before + count)).await.expect("in time").expect("plans");
}

fn demand(controller: &ControllerHandle) -> Vec<(Freshness, f64)> {
    controller.status.borrow().clusters.iter().map(|c| (c.freshness, c.demand_rps[0].1.round())).collect()
}

#[test]
fn a_restarted_controller_moves_nothing_whoever_reports_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut before = None;
    // The whole controller ends with its runtime, as in a crash.
    run(async || {
        let controller = controller(folder.path(), EXAMPLE, None).await;
        before = Some(settled(&controller).await);
    });
    let before = before.expect("published");
    run(async || {
        let controller = controller(folder.path(), EXAMPLE, None).await;
        plans(&controller, 3).await;
        assert_eq!(controller.snapshots.borrow().as_ref(), Some(&before), "nobody has reported yet");
        report(&controller, Duration::from_secs(2)).await;
        plans(&controller, 3).await;
        assert_eq!(controller.snapshots.borrow().as_ref(), Some(&before), "everybody has, once");
        let wanted: Vec<_> = before.routes.iter().map(|r| (Freshness::Published, r.demand_rps.round())).collect();
        assert_eq!(demand(&controller), wanted);
    });
}

#[test]
fn a_controller_that_has_heard_nobody_takes_over_with_the_last_leaders_demand() {
    run(async || {
        let etcd = Etcd::start();
        let (disk_one, disk_two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let one = controller(disk_one.path(), EXAMPLE, Some(&etcd)).await;
        // Reports go to the leader alone, so that the one that stands by hears nothing.
        let mut status = one.status.clone();
        timeout(PATIENCE, status.wait_for(|s| s.plans > 0)).await.expect("in time").expect("it leads");
        let before = settled(&one).await;
        let two = controller(disk_two.path(), EXAMPLE, Some(&etcd)).await;
        let mut snapshots = two.snapshots.clone();
        let follows = snapshots.wait_for(|s| s.as_ref() == Some(&before));
        timeout(PATIENCE, follows).await.expect("in time").expect("runs");
        one.resign().await;
        plans(&two, 3).await;
        assert_eq!(two.snapshots.borrow().as_ref(), Some(&before), "a takeover moves nothing");
        assert!(demand(&two).iter().all(|(freshness, _)| *freshness == Freshness::Published), "{:?}", demand(&two));
    });
}

#[test]
fn a_restart_with_one_engine_more_holds_the_weights_and_tells_data_planes_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut before = None;
    run(async || {
        let controller = controller(folder.path(), EXAMPLE, None).await;
        before = Some(settled(&controller).await);
    });
    let before = before.expect("published");
    let first = EXAMPLE.find("[[engine]]").expect("engines");
    let second = first + 1 + EXAMPLE[first + 1..].find("[[").expect("another");
    let twin = EXAMPLE[first..second].replace("\"e1\"", "\"e0\"");
    let twin: String = twin
        .lines()
        .map(|line| if line.starts_with("address") { "address = \"127.0.0.1:1\"\n".to_owned() } else { format!("{line}\n") })
        .collect();
    let larger = format!("{}{twin}{}", &EXAMPLE[..first], &EXAMPLE[first..]);
    run(async || {
        let controller = controller(folder.path(), &larger, None).await;
        let mut snapshots = controller.snapshots.clone();
        let knows_it = |snapshot: &Snapshot| snapshot.engines.iter().any(|engine| engine.name == "e0");
        let found = timeout(PATIENCE, snapshots.wait_for(|s| s.as_deref().is_some_and(knows_it))).await;
        let after = found.expect("in time").expect("runs").clone().expect("there");
        assert!(after.target_clusters.is_empty() && !after.reason.contains("there were no weights"), "{}", after.reason);
        let moved = router_user::publish::history::moves(&before, &after).moved_frac;
        assert!(moved <= 0.1 + 1e-3, "moves {moved} of the demand at once: {}", after.reason);
    });
}

#[test]
fn engines_are_shown_with_the_capacity_they_have_now() {
    let folder = tempfile::tempdir().expect("a folder");
    run(async || {
        let controller = controller(folder.path(), EXAMPLE, None).await;
        settled(&controller).await;
    });
    let wider = EXAMPLE.replacen("capacity_rps = 100", "capacity_rps = 130", 1);
    assert_ne!(wider, EXAMPLE, "the example has a profile of 100 requests/s");
    run(async || {
        let controller = controller(folder.path(), &wider, None).await;
        plans(&controller, 2).await;
        let engines = controller.status.borrow().engines.clone();
        let capacity: Vec<f64> = engines.iter().map(|e| e.present.as_ref().expect("planned").capacity_rps).collect();
        assert!(capacity.contains(&130.0), "{capacity:?}");
        let load: f64 = engines.iter().map(|e| e.present.as_ref().expect("planned").load_rps).sum();
        let truth: u64 = TRUTH.iter().map(|(_, rps)| rps).sum();
        assert!((load / truth as f64 - 1.0).abs() < 0.05, "{load}, wanted {truth}");
    });
}
