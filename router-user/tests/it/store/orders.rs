//! Orders about engines outlive the controller that took them.

use std::sync::Arc;

use router_user::control::{Command, CommandError, ControllerHandle, OrderRequest, OrderVerb};
use router_user::publish::snapshot::{OrderKind, Snapshot};
use tokio::time::timeout;

use super::{EXAMPLE, Etcd, PATIENCE, controller, run};

async fn give(controller: &ControllerHandle, order: OrderVerb) -> Result<(), CommandError> {
    let (engine, by) = ("e3".to_owned(), "alice".to_owned());
    let request = OrderRequest { engine, order, ttl_ms: None, reason: String::new(), by, force: true };
    controller.ask(|done| Command::Order(request, done)).await.map(drop)
}

async fn published(controller: &ControllerHandle, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    let mut snapshots = controller.snapshots.clone();
    let found = snapshots.wait_for(|s| s.as_deref().is_some_and(&wanted));
    timeout(PATIENCE, found).await.expect("in time").expect("runs").clone().expect("there")
}

async fn plans(controller: &ControllerHandle) {
    let mut status = controller.status.clone();
    let before = status.borrow().plans;
    timeout(PATIENCE, status.wait_for(|s| s.plans >= before + 3)).await.expect("in time").expect("plans");
}

/// Whether no data plane sends the ejected engine anything, and plans do not either.
fn is_ejected(snapshot: &Snapshot) -> bool {
    let is_used = |route: &router_user::publish::snapshot::Route| route.weights.iter().any(|share| share.engine.index() == 2);
    snapshot.engines[2].is_ordered(OrderKind::Eject) && !snapshot.routes.iter().any(is_used)
}

#[test]
fn a_restarted_controller_keeps_an_engine_ejected_until_it_is_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut before = None;
    run(async || {
        let controller = controller(folder.path(), EXAMPLE, None).await;
        published(&controller, |_| true).await;
        give(&controller, OrderVerb::Eject).await.expect("carried out");
        published(&controller, |s| s.engines[2].is_ordered(OrderKind::Eject)).await;
        before = Some(published(&controller, is_ejected).await);
    });
    run(async || {
        let controller = controller(folder.path(), EXAMPLE, None).await;
        plans(&controller).await;
        let now = controller.snapshots.borrow().clone().expect("published");
        assert!(is_ejected(&now), "{now:?}");
        assert_eq!(Some(now.engines[2].order.clone()), before.map(|before| before.engines[2].order.clone()));
        assert!(controller.status.borrow().engines[2].order.is_some(), "and says so");
        give(&controller, OrderVerb::Restore).await.expect("carried out");
        published(&controller, |s| s.engines[2].is_ordered(OrderKind::Restore) && s.engines[2].load_rps > 0.0).await;
    });
}

#[test]
fn the_next_leader_knows_the_orders_of_the_last_one() {
    run(async || {
        let etcd = Etcd::start();
        let (disk_one, disk_two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let one = controller(disk_one.path(), EXAMPLE, Some(&etcd)).await;
        published(&one, |_| true).await;
        let two = controller(disk_two.path(), EXAMPLE, Some(&etcd)).await;
        let mut status = two.status.clone();
        timeout(PATIENCE, status.wait_for(|s| s.standby_reason.is_some())).await.expect("in time").expect("runs");
        assert!(matches!(give(&two, OrderVerb::Eject).await, Err(CommandError::StandsBy(_))));
        give(&one, OrderVerb::Eject).await.expect("it leads");
        let ejected = published(&one, is_ejected).await;
        published(&two, |s| s.generation >= ejected.generation).await;
        one.resign().await;
        timeout(PATIENCE, status.wait_for(|s| s.standby_reason.is_none())).await.expect("in time").expect("runs");
        plans(&two).await;
        let now = two.snapshots.borrow().clone().expect("published");
        assert!(is_ejected(&now), "{now:?}");
        give(&two, OrderVerb::Restore).await.expect("it leads now");
        published(&two, |s| s.engines[2].load_rps > 0.0).await;
    });
}
