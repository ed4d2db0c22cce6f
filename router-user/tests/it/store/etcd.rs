//! Etcd's failures: down, hung, compacted, damaged; leaders that are deposed; what is kept.

use std::time::Duration;

use etcd_client::CompactionOptions;
use router_user::clock::Clock;
use router_user::protocol::DemandReport;
use router_user::publish::Generation;
use router_user::publish::store::{Document, Election, Held, Store, StoreError};
use tokio::time::timeout;

use super::{Etcd, PATIENCE, lead, lead_for, run, snapshot};

/// Length of a lease that a test does not outlive.
const NEVER: Duration = Duration::from_secs(3_600);

fn report(instance: &str, arrivals: u64) -> DemandReport {
    let (cluster, instance) = ("a".to_owned(), instance.to_owned());
    DemandReport { cluster, instance, window_ms: 1_000, arrivals: vec![("chat".to_owned(), arrivals)], ..DemandReport::default() }
}

#[test]
fn one_leads_and_its_epoch_is_above_all_before() {
    run(async || {
        let etcd = Etcd::start();
        let (one, two) = (etcd.store().await, etcd.store().await);
        let length = Duration::from_secs(2);
        let first = lead(&one, "one").await;
        assert_eq!(first.epoch, 1);
        let Ok(Election::Lost { leader, revision }) = two.campaign("two", length, Generation(0)).await else {
            panic!("two leaders");
        };
        assert_eq!(leader, "one");
        // It hears of it when the leader resigns, long before it would ask by itself, and of the
        // generations that others hold.
        let waiting = two.clone();
        let vacancy = tokio::task::spawn_local(async move { waiting.vacancy(revision, NEVER).await });
        one.resign(&first).await.expect("resigned");
        timeout(PATIENCE, vacancy).await.expect("told").expect("no panic").expect("watched");
        let held = Generation::first_of(7).expect("an epoch");
        let Ok(Election::Won(second)) = two.campaign("two", length, held).await else { panic!("nobody leads") };
        assert_eq!(second.epoch, 8);
        assert_eq!(two.raise(&second, Generation::first_of(20).expect("an epoch")).await.expect("leads").epoch, 21);
        assert_eq!(one.prolong(&first, length).await.expect("answered"), None, "its lease is gone");
    });
}

#[test]
fn a_deposed_leader_publishes_nothing() {
    run(async || {
        let etcd = Etcd::start();
        let (one, two) = (etcd.store().await, etcd.store().await);
        let first = lead(&one, "one").await;
        let a = snapshot(Generation::first_of(first.epoch).expect("an epoch"), 0);
        one.publish(&first, &a).await.expect("published");
        let lower = one.publish(&first, &snapshot(Generation(1), 0)).await;
        assert!(matches!(lower, Err(StoreError::Deposed)), "a lower generation than the head: {lower:?}");
        one.resign(&first).await.expect("resigned");
        let second = lead(&two, "two").await;
        // It does not know yet, and its number is higher.
        let late = one.publish(&first, &snapshot(Generation::first_of(99).expect("an epoch"), 0)).await;
        assert!(matches!(late, Err(StoreError::Deposed)), "{late:?}");
        assert!(matches!(one.keep(&first, Document::Pins, b"[]").await, Err(StoreError::Deposed)));
        assert_eq!(two.newest().await.expect("readable").expect("there"), a);
        let b = snapshot(Generation::first_of(second.epoch).expect("an epoch"), 0);
        two.publish(&second, &b).await.expect("published");
        assert_eq!(two.newest().await.expect("readable").expect("there"), b);
    });
}

#[test]
fn large_snapshots_go_in_pieces_and_old_ones_are_forgotten() {
    run(async || {
        let etcd = Etcd::start();
        let store = etcd.store().await;
        let term = lead(&store, "one").await;
        let mut generation = Generation::first_of(term.epoch).expect("an epoch");
        for _ in 0..10 {
            store.publish(&term, &snapshot(generation, 2_500_000)).await.expect("published");
            generation = Generation::after(generation, term.epoch).expect("a number");
        }
        let kept = store.generations().await.expect("listed");
        assert_eq!(kept.len(), 8);
        let newest = store.newer_than(Held::default()).await.expect("readable").expect("there");
        assert_eq!(Some(Generation(newest.generation)), kept.last().copied());
        assert_eq!(*newest, snapshot(Generation(newest.generation), 2_500_000));
    });
}

#[test]
fn what_is_torn_or_damaged_is_never_handed_out() {
    run(async || {
        let etcd = Etcd::start();
        let (store, mut raw) = (etcd.store().await, etcd.raw().await);
        let term = lead(&store, "one").await;
        let generation = Generation::first_of(term.epoch).expect("an epoch");
        store.publish(&term, &snapshot(generation, 1_500_000)).await.expect("published");
        let key = |piece: usize| format!("/test/snapshots/{:016x}/{piece:04}", generation.0);
        let second = raw.get(key(1), None).await.expect("answered").take_kvs().pop().expect("a second piece");

        let mut damaged = second.value().to_vec();
        damaged[1_000] ^= 1;
        raw.put(key(1), damaged, None).await.expect("put");
        assert!(matches!(store.newest().await, Err(StoreError::Illegal { .. })), "a flipped bit");
        raw.put(key(1), &second.value()[..1_000], None).await.expect("put");
        assert!(matches!(store.newest().await, Err(StoreError::Illegal { .. })), "a cut piece");
        raw.delete(key(1), None).await.expect("deleted");
        assert!(matches!(store.newest().await, Err(StoreError::Unknown(_))), "a missing piece");
        raw.put("/test/head", "nonsense", None).await.expect("put");
        assert!(matches!(store.newest().await, Err(StoreError::Foreign { .. })), "a head that is none");
        let newer = store.newer_than(Held::default()).await;
        assert!(matches!(newer, Err(StoreError::Foreign { .. })), "{newer:?}");
    });
}

#[test]
fn an_etcd_that_dies_hangs_or_compacts_costs_errors_and_nothing_else() {
    run(async || {
        let mut etcd = Etcd::start();
        let store = etcd.store().await;
        let term = lead_for(&store, "one", Duration::from_secs(2)).await;
        let mut generation = Generation::first_of(term.epoch).expect("an epoch");
        store.publish(&term, &snapshot(generation, 0)).await.expect("published");
        let held = Held::of(&store.newest().await.expect("readable").expect("there"));

        // Hung: every call ends by itself, and a publish that was cut off never overtakes a later
        // one.
        etcd.freeze(true);
        generation = Generation::after(generation, term.epoch).expect("a number");
        let cut_off = snapshot(generation, 0);
        let hung = timeout(PATIENCE, store.publish(&term, &cut_off)).await.expect("ends by itself");
        assert!(matches!(hung, Err(StoreError::Slow { .. })), "{hung:?}");
        let hung = timeout(PATIENCE, store.newest()).await.expect("ends by itself");
        assert!(matches!(hung, Err(StoreError::Slow { .. })));
        etcd.freeze(false);
        let term = lead(&store, "one again").await;
        generation = Generation::first_of(term.epoch).expect("an epoch");
        store.publish(&term, &snapshot(generation, 0)).await.expect("published");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let newest = store.newest().await.expect("readable").expect("there");
        assert_eq!(Generation(newest.generation), generation);

        // Compacted below what is watched: an election that waits asks anew instead of waiting for
        // ever.
        let mut raw = etcd.raw().await;
        let revision = raw.get("/test/head", None).await.expect("answered").header().expect("a header").revision();
        raw.compact(revision, Some(CompactionOptions::new().with_physical())).await.expect("compacted");
        let lease = 2 * PATIENCE; // Not the leader's silence may end the wait.
        let vacant = timeout(PATIENCE, store.vacancy(1, lease)).await.expect("ends by itself");
        vacant.expect_err("compacted away");
        assert!(store.newer_than(held.clone()).await.expect("readable").is_some());

        // Dead: an error at once or in time, and the same client goes on when it is back.
        etcd.kill();
        store.newer_than(held.clone()).await.expect_err("nobody answers");
        etcd.restart();
        let clock = Clock::start();
        while store.newer_than(held.clone()).await.is_err() {
            assert!(clock.now() < PATIENCE, "the client does not come back; etcd says:\n{}", etcd.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn reports_come_through_once_each_across_a_restart_and_leave_with_their_lease() {
    run(async || {
        let mut etcd = Etcd::start();
        let (plane, controller) = (etcd.store().await, etcd.store().await);
        plane.report(&report("p", 1)).await.expect("put");
        let mut reports = controller.reports();
        assert_eq!(reports.next().await.expect("listed"), [report("p", 1)]);
        plane.report(&report("p", 2)).await.expect("put");
        plane.report(&report("p", 3)).await.expect("put");
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(tokio::time::timeout(PATIENCE, reports.next()).await.expect("in time").expect("watched"));
        }
        assert_eq!(seen, [report("p", 2), report("p", 3)]);
        let kept = etcd.raw().await.get("/test/reports/a/p", None).await.expect("answered").take_kvs().pop().expect("kept");
        assert!(kept.lease() > 0, "a data plane that is gone leaves nothing behind");

        etcd.kill();
        etcd.restart();
        let clock = Clock::start();
        while plane.report(&report("p", 4)).await.is_err() {
            assert!(clock.now() < PATIENCE, "reports do not come back");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let fresh = loop {
            match tokio::time::timeout(PATIENCE, reports.next()).await.expect("in time") {
                Ok(fresh) => break fresh,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        assert_eq!(fresh, [report("p", 4)], "what was seen before is not told again");
    });
}
