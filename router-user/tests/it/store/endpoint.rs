//! The controller's endpoint, and what a controller does whose own store was lost.

use std::sync::Arc;
use std::time::Duration;

use router_user::clock::Clock;
use router_user::config;
use router_user::control::{self, Command, CommandError, Controller, ControllerHandle, PinRequest};
use router_user::publish::Generation;
use router_user::publish::store::{Held, HttpStore, Store, StoreError};

use super::{PATIENCE, run};

async fn controller(folder: &std::path::Path) -> (ControllerHandle, HttpStore) {
    let mut config = config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
    config.store.dir = folder.join("snapshots");
    // Nothing listens where the engines are said to be; their health must not make plans of its
    // own.
    config.control.health_period = Duration::from_secs(3_600);
    let controller = Controller::start(Arc::new(config), Clock::start(), None).expect("started");
    let address = control::serve(controller.clone(), "127.0.0.1:0".parse().expect("legal")).await.expect("served");
    (controller, HttpStore::new(&format!("http://{address}")))
}

fn pin(weights: &[(&str, f64)]) -> PinRequest {
    let weights = weights.iter().map(|&(engine, weight)| (engine.to_owned(), weight)).collect();
    PinRequest { cluster: "b".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() }
}

async fn newer(store: &HttpStore, held: Held) -> Arc<router_user::publish::snapshot::Snapshot> {
    let newer = tokio::time::timeout(PATIENCE, store.newer_than(held)).await.expect("in time");
    newer.expect("answered").expect("there is one")
}

#[test]
fn readers_wait_for_what_is_newer_and_find_what_is_kept() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let (controller, store) = controller(folder.path()).await;
        let first = newer(&store, Held::default()).await;
        assert_eq!(first.generation, 1);
        let (waiting, held) = (store.clone(), Held::of(&first));
        let waiter = tokio::task::spawn_local(async move { newer(&waiting, held).await });
        controller.ask(|done| Command::Pin(pin(&[("e1", 1.0)]), done)).await.expect("legal");
        assert_eq!(waiter.await.expect("no panic").generation, 2);
        assert_eq!(store.generations().await.expect("listed"), [Generation(1), Generation(2)]);
        assert_eq!(store.read(Generation(1)).await.expect("kept"), *first);
        assert!(matches!(store.read(Generation(9)).await, Err(StoreError::Unknown(Generation(9)))));
    });
}

#[test]
fn a_controller_that_lost_its_store_goes_on_above_what_its_readers_hold() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let (_controller, store) = controller(folder.path()).await;
        let first = newer(&store, Held::default()).await;
        let elsewhere = Held { generation: Generation(57), digest: "a".repeat(64) };
        let above = newer(&store, elsewhere).await;
        assert_eq!(Generation(above.generation), Generation::first_of(1).expect("an epoch"), "an epoch of its own");
        assert_eq!(above.routes, first.routes, "nothing moves");
        assert!(above.reason.contains("generation 57"), "{}", above.reason);

        // The same number on another content is no different.
        let other = Held { generation: Generation(above.generation), digest: "b".repeat(64) };
        assert_eq!(Generation(newer(&store, other).await.generation), Generation::first_of(2).expect("an epoch"));
        // And nobody drives the numbers to their end.
        let mad = store.newer_than(Held { generation: Generation(u64::MAX), digest: String::new() });
        tokio::time::timeout(Duration::from_secs(1), mad).await.expect_err("left to wait");
        let last = store.generations().await.expect("listed");
        assert_eq!(last.last().copied(), Generation::first_of(2));
    });
}

#[test]
fn a_rollback_is_a_new_generation_and_holds_until_it_is_taken_back() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let (controller, store) = controller(folder.path()).await;
        let first = newer(&store, Held::default()).await;
        controller.ask(|done| Command::Pin(pin(&[("e1", 1.0)]), done)).await.expect("legal");
        let second = newer(&store, Held::of(&first)).await;
        assert_ne!(second.routes[1].weights, first.routes[1].weights);

        let roll_back =
            |generation| controller.ask(move |done| Command::Rollback { generation: Generation(generation), ttl: None, done });
        assert_eq!(roll_back(1).await.expect("kept"), 3);
        let third = newer(&store, Held::of(&second)).await;
        let weights = |snapshot: &router_user::publish::snapshot::Snapshot| {
            snapshot.routes.iter().map(|route| route.weights.clone()).collect::<Vec<_>>()
        };
        assert_eq!((third.generation, weights(&third)), (3, weights(&first)));
        assert!(third.routes.iter().all(|route| route.pinned));

        // Plans come and go; what was rolled back to stays.
        let mut status = controller.status.clone();
        let plans = status.borrow().plans;
        tokio::time::timeout(PATIENCE, status.wait_for(|s| s.plans >= plans + 2)).await.expect("planned").expect("runs");
        let in_force = controller.snapshots.borrow().clone().expect("published");
        for (now, then) in in_force.routes.iter().zip(&first.routes) {
            for (now, then) in now.weights.iter().zip(&then.weights) {
                assert!(now.engine == then.engine && (now.weight - then.weight).abs() < 1e-9, "{in_force:?}");
            }
        }
        let freed = controller.ask(|done| Command::Unpin { cluster: None, class: None, done }).await.expect("taken back");
        assert_eq!(freed, 3);
        assert!(matches!(roll_back(99).await, Err(CommandError::Store(StoreError::Unknown(Generation(99))))));
    });
}
