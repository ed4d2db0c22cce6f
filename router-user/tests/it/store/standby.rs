//! Two controllers on one etcd, in one process: what the one that stands by knows, refuses and
//! takes over.

use std::sync::Arc;

use router_user::control::{Command, CommandError, ControllerHandle, PinRequest};
use router_user::publish::snapshot::Snapshot;
use tokio::time::timeout;

use super::{EXAMPLE, Etcd, PATIENCE, controller, run};

async fn until(controller: &ControllerHandle, leads: bool) {
    let mut status = controller.status.clone();
    let known = status.wait_for(|s| s.last_plan_ms > 0.0 || s.standby_reason.is_some());
    timeout(PATIENCE, known).await.expect("in time").expect("runs");
    timeout(PATIENCE, status.wait_for(|s| s.standby_reason.is_none() == leads)).await.expect("in time").expect("runs");
}

async fn published(controller: &ControllerHandle, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    let mut snapshots = controller.snapshots.clone();
    let found = snapshots.wait_for(|s| s.as_deref().is_some_and(&wanted));
    timeout(PATIENCE, found).await.expect("in time").expect("runs").clone().expect("there")
}

#[test]
fn the_one_that_stands_by_follows_refuses_and_takes_over_without_moving_anything() {
    run(async || {
        let etcd = Etcd::start();
        let (disk_one, disk_two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let one = controller(disk_one.path(), EXAMPLE, Some(&etcd)).await;
        until(&one, true).await;
        published(&one, |_| true).await;
        let two = controller(disk_two.path(), EXAMPLE, Some(&etcd)).await;
        until(&two, false).await;

        let weights = vec![("e1".to_owned(), 0.25), ("e2".to_owned(), 0.75)];
        let pin = PinRequest { cluster: "b".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() };
        let refused = two.ask(|done| Command::Pin(pin.clone(), done)).await;
        assert!(matches!(refused, Err(CommandError::StandsBy(_))), "{refused:?}");
        one.ask(|done| Command::Pin(pin.clone(), done)).await.expect("it leads");
        let pinned = published(&one, |s| s.routes[1].pinned).await;
        let followed = published(&two, |s| s.generation == pinned.generation).await;
        assert_eq!(followed, pinned);

        one.resign().await;
        until(&two, true).await;
        let mut status = two.status.clone();
        let plans = status.borrow().plans;
        timeout(PATIENCE, status.wait_for(|s| s.plans >= plans + 3)).await.expect("in time").expect("plans");
        let in_force = two.snapshots.borrow().clone().expect("published");
        assert_eq!(in_force, pinned, "a takeover publishes nothing, and keeps the pins");
        let taken_back = two.ask(|done| Command::Unpin { cluster: None, class: None, done }).await;
        assert_eq!(taken_back.expect("it leads now"), 1);
        let freed = published(&two, |s| !s.routes[1].pinned).await;
        assert!(freed.generation > pinned.generation);
        let back = published(&one, |s| s.generation == freed.generation).await;
        assert_eq!(back, freed, "now the other one follows");
    });
}
