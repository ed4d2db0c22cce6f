//! What every store promises its readers, asked of the directory and of etcd. A controller chooses
//! its numbers itself; its endpoint has tests of its own.

use std::time::Duration;

use router_user::publish::Generation;
use router_user::publish::store::{DirStore, Document, Held, Store, StoreError};

use super::{Etcd, lead, run, snapshot};

/// Checks a store against the directory or etcd behind it, into which `publish` puts a generation.
async fn keeps_its_promises(store: &(impl Store + Clone + 'static), publish: impl AsyncFn(Generation)) {
    publish(Generation(5)).await;
    let first = store.newer_than(Held::default()).await.expect("readable").expect("there");
    assert_eq!(first.generation, 5);
    assert_eq!(*first, snapshot(Generation(5), 10), "as it was published");

    // A reader that has it waits, and is told at once.
    let (waiting, held) = (store.clone(), Held::of(&first));
    let waiter = tokio::task::spawn_local(async move { waiting.newer_than(held).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished(), "nothing newer is there yet");
    publish(Generation(7)).await;
    let next = waiter.await.expect("no panic").expect("readable").expect("newer");
    assert_eq!(next.generation, 7);

    assert_eq!(store.generations().await.expect("listed"), [Generation(5), Generation(7)]);
    assert_eq!(store.read(Generation(5)).await.expect("kept"), *first);
    assert!(matches!(store.read(Generation(6)).await, Err(StoreError::Unknown(Generation(6)))));
}

#[test]
fn a_directory() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirStore::open(folder.path()).expect("opened");
        keeps_its_promises(&store, async |generation| store.publish(&snapshot(generation, 10)).expect("published")).await;
    });
}

#[test]
fn what_a_leader_keeps_is_there_for_the_next_one() {
    run(async || {
        let etcd = Etcd::start();
        let (one, two) = (etcd.store().await, etcd.store().await);
        let term = lead(&one, "one").await;
        for document in [Document::Pins, Document::Orders] {
            assert_eq!(two.kept(document).await.expect("readable"), None);
            let json = format!("[\"{}\"]", document.name()).into_bytes();
            one.keep(&term, document, &json).await.expect("kept");
            assert_eq!(two.kept(document).await.expect("readable"), Some(json));
        }
        one.resign(&term).await.expect("resigned");
        assert!(matches!(one.keep(&term, Document::Orders, b"[]").await, Err(StoreError::Deposed)));
    });
}

#[test]
fn an_etcd() {
    run(async || {
        let etcd = Etcd::start();
        let (store, writer) = (etcd.store().await, etcd.store().await);
        let term = lead(&writer, "one").await;
        keeps_its_promises(&store, async |generation| {
            writer.publish(&term, &snapshot(generation, 10)).await.expect("published");
        })
        .await;
    });
}
