//! Two controllers on one etcd. The one that leads is killed with SIGKILL in the middle of
//! publishing, again and again.
//!
//! `ILB_TAKEOVERS=100 cargo test --release --workspace takeover -- --nocapture` does it a hundred
//! times; by default it is a few, as each takes as long as a lease.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{EventType, WatchOptions};
use router_user::admin::{AdminClient, StatusView};
use router_user::clock::Clock;
use router_user::control::PinRequest;
use router_user::publish::Generation;
use router_user::publish::store::{DirStore, EtcdStore, Held, Store};

use super::process::Process;
use super::{Etcd, PATIENCE, run};

const TAKEOVERS: usize = 4;
const LEASE: Duration = Duration::from_secs(2);
/// Readers that check everything that can be seen.
const READERS: usize = 3;

/// The example fleet, planned ten times a second, with tags that make a snapshot two pieces long:
/// publishing takes long enough to die in.
fn config(store: &str) -> String {
    let example = include_str!("../../../../examples/three-regions.toml");
    let padded = example.replacen("name = \"e1\"", "name = \"e1\"\ntags = { note = \"PADDING\" }", 1);
    assert!(padded.contains("PADDING"), "the example has an engine e1");
    let padded = padded.replace("PADDING", &"x".repeat(1_200_000));
    format!("{padded}\n[control]\nperiod = \"100ms\"\n[store]\ndir = \"snapshots\"\n{store}\n")
}

/// Everything the readers have seen: the digest of each generation.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<Generation, String>>>);

impl Seen {
    fn note(&self, held: &Held) {
        let mut seen = self.0.lock().expect("no reader panicked");
        let digest = seen.entry(held.generation).or_insert_with(|| held.digest.clone());
        assert_eq!(*digest, held.digest, "two contents under generation {}", held.generation);
    }

    fn highest(&self) -> Generation {
        self.0.lock().expect("no reader panicked").last_key_value().map_or(Generation(0), |(generation, _)| *generation)
    }
}

/// A data plane's way of reading, for ever: whatever comes out is whole, legal and newer.
async fn read(store: EtcdStore, seen: Seen) {
    let mut held = Held::default();
    loop {
        match store.newer_than(held.clone()).await {
            Ok(None) => {}
            Ok(Some(snapshot)) => {
                snapshot.validate().expect("legal");
                assert_eq!(*snapshot, (*snapshot).clone().sealed(), "whole");
                let newer = Held::of(&snapshot);
                assert!(newer.generation > held.generation, "{} after {}", newer.generation, held.generation);
                seen.note(&newer);
                held = newer;
            }
            Err(error) => panic!("etcd was there all the time: {error}"),
        }
    }
}

/// A real data plane, for ever: it goes from generation to generation, and never back.
async fn watch_plane(socket: PathBuf, held: Rc<Cell<Generation>>) {
    loop {
        // It may still be starting, or be busy with a table.
        if let Ok(status) = AdminClient::new(&socket).status().await {
            let generation = status.generation.expect("a data plane has a snapshot from the start");
            assert!(generation >= held.get(), "the data plane went back from {} to {generation}", held.get());
            held.set(generation);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a data plane has kept is whole, and what everybody else has under the same numbers.
fn check_disk(plane: &Process, seen: &Seen) -> usize {
    let store = DirStore::open(&plane.folder.path().join("snapshots")).expect("opened");
    let kept = store.list().expect("listed");
    for &generation in &kept {
        seen.note(&Held::of(&store.load(generation).expect("whole and legal")));
    }
    kept.len()
}

/// An operator who cannot decide, so that there is always a reason to publish: whichever controller
/// leads takes the weights.
async fn pin(sockets: Vec<PathBuf>) {
    for turn in 0_u32.. {
        let share = if turn.is_multiple_of(2) { 0.6 } else { 0.7 };
        let weights = vec![("e2".to_owned(), share), ("e3".to_owned(), 1.0 - share)];
        let pin = PinRequest { cluster: "b".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() };
        for socket in &sockets {
            // The other one refuses; both do while none leads, or while etcd is away.
            let _ = AdminClient::new(socket).pin(&pin).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The process of the controller that leads, by its key in etcd.
async fn leader(raw: &etcd_client::Client) -> Option<u32> {
    let kv = raw.kv_client().get("/test/leader", None).await.expect("answered").take_kvs().pop()?;
    let name = kv.value_str().expect("UTF-8").to_owned();
    Some(name.split_once("(process ")?.1.trim_end_matches(')').parse().expect("a process"))
}

/// Etcd goes away and comes back: the data plane keeps what it has, then follows whoever leads
/// next.
async fn outlives_etcd(mut etcd: Etcd, socket: &Path, controllers: Vec<PathBuf>) {
    let clock = Clock::start();
    let status = async || AdminClient::new(socket).status().await.expect("the data plane answers");
    etcd.kill();
    let before = loop {
        let status = status().await;
        if status.proxy.expect("a proxy").controller_error.is_some() {
            break status.generation;
        }
        assert!(clock.now() < PATIENCE, "the data plane does not notice that etcd is gone");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    tokio::time::sleep(LEASE).await;
    assert_eq!(status().await.generation, before, "nothing changes without etcd");
    etcd.restart();
    let pinning = tokio::task::spawn_local(pin(controllers));
    while status().await.generation <= before {
        assert!(
            clock.now() < 2 * PATIENCE,
            "nothing new reaches the data plane after etcd came back; etcd says:\n{}",
            etcd.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    pinning.abort();
}

#[test]
fn followers_take_over_from_leaders_that_die_in_the_middle_of_publishing() {
    let takeovers = std::env::var("ILB_TAKEOVERS").map_or(TAKEOVERS, |text| text.parse().expect("ILB_TAKEOVERS is a number"));
    run(async || {
        let etcd = Etcd::start();
        let raw = etcd.raw().await;
        let seen = Seen::default();
        let mut watchers = Vec::new();
        for _ in 0..READERS {
            watchers.push(tokio::task::spawn_local(read(etcd.store().await, seen.clone())));
        }
        let by_etcd = config(&format!("etcd = [\"{}\"]\nprefix = \"/test\"\nlease = \"2s\"", etcd.address()));
        let mut controllers = [Process::start(&["control"], &by_etcd), Process::start(&["control"], &by_etcd)];
        let sockets: Vec<PathBuf> = controllers.iter().map(Process::socket).collect();
        let pinning = tokio::task::spawn_local(pin(sockets.clone()));
        let by_http = config(&format!("url = \"http://{}\"", controllers[0].listen));
        let planes = [&by_etcd, &by_http].map(|config| Process::start(&["proxy", "--cluster", "a"], config));
        let held: [Rc<Cell<Generation>>; 2] = Default::default();
        for (plane, held) in planes.iter().zip(&held) {
            watchers.push(tokio::task::spawn_local(watch_plane(plane.socket(), Rc::clone(held))));
        }
        let (mut torn, mut taken, mut last_epoch) = (0, Vec::new(), 0);
        // Few rounds may happen to end with no snapshot half written; more are made until one does.
        for round in 0.. {
            if round >= takeovers && torn > 0 || round >= 10 * takeovers {
                break;
            }
            for controller in &controllers {
                let takes_part = |status: &StatusView| {
                    let control = status.control.as_ref().expect("a controller");
                    control.plans > 0 || control.standby_reason.as_ref().is_some_and(|reason| reason.ends_with(" leads"))
                };
                controller.until("it leads or stands by", takes_part).await;
            }
            // A piece of a snapshot shows: its head is not there yet. Some leaders may finish one
            // or two first.
            let mut spared = round % 3;
            let mut watch =
                raw.watch_client().watch("/test/snapshots/", Some(WatchOptions::new().with_prefix())).await.expect("watched");
            let (key, leading) = loop {
                let message =
                    tokio::time::timeout(PATIENCE, watch.message()).await.expect("publishes").expect("watched").expect("open");
                let put = message.events().iter().find(|event| event.event_type() == EventType::Put);
                let Some(key) = put.and_then(|event| event.kv()).map(|kv| kv.key_str().expect("UTF-8").to_owned()) else {
                    continue;
                };
                let Some(leading) = leader(&raw).await else { continue };
                match (key.ends_with("/0000"), spared) {
                    (true, 0) => break (key, leading),
                    (true, _) => spared -= 1,
                    (false, _) => {}
                }
            };
            let victim = controllers.iter_mut().find(|c| c.process.id() == leading).expect("one of the two leads");
            let clock = Clock::start();
            victim.kill();
            let dying = Generation(u64::from_str_radix(key.split('/').nth(3).expect("a generation"), 16).expect("hexadecimal"));
            let head = raw.kv_client().get("/test/head", None).await.expect("answered").take_kvs().pop().expect("a head");
            let head = Generation(u64::from_str_radix(&head.value_str().expect("UTF-8")[..16], 16).expect("hexadecimal"));
            torn += usize::from(head < dying);
            // The other one leads, and publishes above everything that was.
            let before = seen.highest();
            while leader(&raw).await.is_none_or(|process| process == leading) {
                assert!(clock.now() < PATIENCE, "round {round}: nobody took over");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            taken.push(clock.now());
            while seen.highest() <= before.max(dying) || seen.highest().epoch() <= dying.epoch() {
                assert!(clock.now() < PATIENCE, "round {round}: the new leader publishes nothing above {dying}");
                for watcher in &watchers {
                    assert!(!watcher.is_finished(), "somebody has seen something wrong");
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(seen.highest().epoch() > last_epoch, "epochs rise");
            last_epoch = seen.highest().epoch();
            let victim = controllers.iter_mut().find(|c| c.process.id() == leading).expect("still listed");
            victim.restart(&["control"]);
        }
        // Both data planes are at the end where everybody is.
        let clock = Clock::start();
        pinning.abort();
        while held.iter().any(|held| held.get() < seen.highest()) {
            let at: Vec<_> = held.iter().map(|held| held.get()).collect();
            assert!(clock.now() < PATIENCE, "data planes stay at {at:?}:\n{}\n{}", planes[0].log(), planes[1].log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for watcher in watchers {
            watcher.abort();
            let outcome = watcher.await.expect_err("watchers go on for ever");
            assert!(outcome.is_cancelled(), "somebody has seen something wrong: {outcome}");
        }
        let kept: Vec<usize> = planes.iter().map(|plane| check_disk(plane, &seen)).collect();
        outlives_etcd(etcd, &planes[0].socket(), sockets).await;
        let published = seen.0.lock().expect("no reader panicked").len();
        taken.sort_unstable();
        println!(
            "{} leaders killed, {torn} of them with half a snapshot written; takeovers took {:.2?} at the median and {:.2?} at \
             most with a lease of {LEASE:?}; {published} snapshots read; data planes keep {kept:?}",
            taken.len(),
            taken[taken.len() / 2],
            taken[taken.len() - 1]
        );
        assert!(torn > 0, "no leader died in the middle of publishing");
    });
}
