//! Two controllers on one etcd. The one that leads is killed with SIGKILL in the middle of publishing, again and again.
//!
//! `ILB_TAKEOVERS=100 cargo test --release --workspace takeover -- --nocapture` does it a hundred times; by default it is a few, as each takes
//! as long as a lease.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{EventType, WatchOptions};
use router_user::admin::AdminClient;
use router_user::clock::Clock;
use router_user::publish::Generation;
use router_user::publish::store::{DemandReport, EtcdStore, Held, Store};

use super::{Etcd, PATIENCE, free_address, run};

const TAKEOVERS: usize = 4;
const LEASE: Duration = Duration::from_secs(2);
/// Etcd looks for expired leases twice a second, and a killed leader may have prolonged its own just before. The rest is a busy machine's.
const TAKEOVER_MOST: Duration = Duration::from_secs(4);
/// Readers that check everything that can be seen.
const READERS: usize = 3;

struct Controller {
    folder: tempfile::TempDir,
    process: Child,
}

/// An `ilb` with its own disk, socket and ports; ended with this.
impl Controller {
    fn start(etcd: &Etcd, role: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ilb.toml"), config(etcd.address())).expect("written");
        let process = Self::spawn(folder.path(), role);
        Self { folder, process }
    }

    fn spawn(folder: &Path, role: &[&str]) -> Child {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ilb"));
        command.args(role).args(["-c", "ilb.toml", "--socket", "ilb.sock", "--admin-listen", &free_address().to_string()]);
        command.args(["--listen", &free_address().to_string()]);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("ilb starts")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("--- the last of a log\n{}", &log[log.len().saturating_sub(4_000)..]);
        }
    }
}

/// The example fleet, planned ten times a second, with tags that make a snapshot two pieces long: publishing takes long enough to die in.
fn config(etcd: SocketAddr) -> String {
    let example = include_str!("../../../../examples/three-regions.toml");
    let padded = example.replacen("name = \"e1\"", "name = \"e1\"\ntags = { note = \"PADDING\" }", 1);
    assert!(padded.contains("PADDING"), "the example has an engine e1");
    let padded = padded.replace("PADDING", &"x".repeat(1_200_000));
    format!(
        "{padded}\n[control]\nperiod = \"100ms\"\n[store]\ndir = \"snapshots\"\netcd = [\"{etcd}\"]\nprefix = \"/test\"\nlease = \"2s\"\n"
    )
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

/// Demand that swings, so that there is always a reason to publish.
async fn swing(store: EtcdStore) {
    for tick in 0_u64.. {
        let arrivals = if tick % 2 == 0 { 600 } else { 6_000 };
        let report = DemandReport {
            cluster: "b".to_owned(),
            instance: "swing".to_owned(),
            window_ms: 60_000,
            arrivals: vec![("chat".to_owned(), arrivals)],
            generation: 0,
        };
        store.report(&report).await.expect("etcd was there all the time");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// The process of the controller that leads, by its key in etcd.
async fn leader(raw: &etcd_client::Client) -> Option<u32> {
    let kv = raw.kv_client().get("/test/leader", None).await.expect("answered").take_kvs().pop()?;
    let name = kv.value_str().expect("UTF-8").to_owned();
    Some(name.split_once("(process ")?.1.trim_end_matches(')').parse().expect("a process"))
}

/// Etcd goes away and comes back: the data plane keeps what it has, then follows whoever leads next.
async fn outlives_etcd(mut etcd: Etcd, socket: &Path) {
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
    let swinging = tokio::task::spawn_local(swing(etcd.store().await));
    while status().await.generation <= before {
        assert!(
            clock.now() < 2 * PATIENCE,
            "nothing new reaches the data plane after etcd came back; etcd says:\n{}",
            etcd.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    swinging.abort();
}

#[test]
fn followers_take_over_from_leaders_that_die_in_the_middle_of_publishing() {
    let takeovers = std::env::var("ILB_TAKEOVERS").map_or(TAKEOVERS, |text| text.parse().expect("ILB_TAKEOVERS is a number"));
    run(async || {
        let etcd = Etcd::start();
        let raw = etcd.raw().await;
        let seen = Seen::default();
        let readers: Vec<_> = {
            let mut readers = Vec::new();
            for _ in 0..READERS {
                readers.push(tokio::task::spawn_local(read(etcd.store().await, seen.clone())));
            }
            readers
        };
        let swinging = tokio::task::spawn_local(swing(etcd.store().await));
        let mut controllers = [Controller::start(&etcd, &["control"]), Controller::start(&etcd, &["control"])];
        let plane = Controller::start(&etcd, &["proxy", "--cluster", "a"]);
        let (mut torn, mut longest, mut last_epoch) = (0, Duration::ZERO, 0);
        let mut applied = 0;
        for round in 0..takeovers {
            // A piece of a snapshot shows: its head is not there yet. Some leaders may finish one or two first.
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
            victim.process.kill().expect("killed");
            let clock = Clock::start();
            victim.process.wait().expect("waited for");
            let dying = Generation(u64::from_str_radix(key.split('/').nth(3).expect("a generation"), 16).expect("hexadecimal"));
            let head = raw.kv_client().get("/test/head", None).await.expect("answered").take_kvs().pop().expect("a head");
            let head = Generation(u64::from_str_radix(&head.value_str().expect("UTF-8")[..16], 16).expect("hexadecimal"));
            torn += usize::from(head < dying);
            // The other one leads, and publishes above everything that was.
            let before = seen.highest();
            while leader(&raw).await.is_none_or(|process| process == leading) {
                assert!(clock.now() < TAKEOVER_MOST, "round {round}: nobody took over within {TAKEOVER_MOST:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            longest = longest.max(clock.now());
            while seen.highest() <= before.max(dying) || seen.highest().epoch() <= dying.epoch() {
                assert!(clock.now() < PATIENCE, "round {round}: the new leader publishes nothing above {dying}");
                for reader in &readers {
                    assert!(!reader.is_finished(), "a reader has seen something wrong");
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(seen.highest().epoch() > last_epoch, "epochs rise");
            last_epoch = seen.highest().epoch();
            let victim = controllers.iter_mut().find(|c| c.process.id() == leading).expect("still listed");
            victim.process = Controller::spawn(victim.folder.path(), &["control"]);
            // A real data plane follows too, and only upwards.
            let status = AdminClient::new(&plane.folder.path().join("ilb.sock")).status().await.expect("the data plane answers");
            let generation = status.generation.expect("applied");
            assert!(generation >= applied, "the data plane went back from {applied} to {generation}");
            applied = generation;
        }
        // It is at the end where everybody is.
        let clock = Clock::start();
        swinging.abort();
        let socket = plane.folder.path().join("ilb.sock");
        loop {
            let status = AdminClient::new(&socket).status().await.expect("the data plane answers");
            if status.generation.is_some_and(|generation| generation >= seen.highest().0) {
                break;
            }
            assert!(clock.now() < PATIENCE, "the data plane stays at {:?}:\n{}", status.generation, plane.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for reader in readers {
            reader.abort();
            let outcome = reader.await.expect_err("readers go on for ever");
            assert!(outcome.is_cancelled(), "a reader has seen something wrong: {outcome}");
        }
        outlives_etcd(etcd, &socket).await;
        let published = seen.0.lock().expect("no reader panicked").len();
        println!(
            "{takeovers} leaders killed, {torn} of them with half a snapshot written; the longest takeover took {longest:.2?} with a \
             lease of {LEASE:?}; {published} snapshots read"
        );
        assert!(torn > 0, "no leader died in the middle of publishing");
    });
}
