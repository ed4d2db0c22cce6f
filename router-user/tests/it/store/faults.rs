//! What goes wrong around running processes: an etcd that is not there yet, slow, compacted or
//! empty, or that dies in the middle of a publish; a disk that is full; a controller that stays
//! dead.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{CompactionOptions, EventType, WatchOptions};
use router_user::admin::{AdminClient, StatusView};
use router_user::clock::Clock;
use router_user::config;
use router_user::control::{Command, Controller};
use router_user::protocol::DemandReport;
use router_user::publish::Generation;
use router_user::publish::snapshot::Snapshot;
use router_user::publish::store::{DirStore, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::disk::TinyDisk;
use super::process::Process;
use super::{Etcd, PATIENCE, run};

/// The example fleet, planned often; `padding` makes its snapshots larger.
fn config(store: &str, padding: usize) -> String {
    let example = include_str!("../../../../examples/three-regions.toml");
    let note = format!("name = \"e1\"\ntags = {{ note = \"{}\" }}", "x".repeat(padding));
    let padded = example.replacen("name = \"e1\"", &note, 1);
    format!("{padded}\n[control]\nperiod = \"100ms\"\nhealth_period = \"3s\"\n[store]\ndir = \"snapshots\"\n{store}\n")
}

fn by_etcd(address: SocketAddr) -> String {
    format!("etcd = [\"{address}\"]\nprefix = \"/test\"\nlease = \"2s\"")
}

fn leads(status: &StatusView) -> bool {
    status.control.as_ref().is_some_and(|control| control.standby_reason.is_none() && control.plans > 0)
}

/// What a new data plane reports of a cluster that has more demand than all engines can take: one
/// more reason to publish each time.
fn report() -> DemandReport {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    DemandReport {
        cluster: "b".to_owned(),
        instance: format!("stir-{}", COUNT.fetch_add(1, Ordering::Relaxed)),
        window_ms: 60_000,
        arrivals: vec![("chat".to_owned(), 12_000)],
        ..DemandReport::default()
    }
}

async fn stir(etcd: &Etcd) {
    let report = report();
    let store = etcd.store().await;
    let clock = Clock::start();
    while let Err(error) = store.report(&report).await {
        assert!(clock.now() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Passes bytes on to `to` and back, each read later by `delay`.
async fn delaying_relay(to: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let pass = async |mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, delay: Duration| {
        let (sender, mut late) = tokio::sync::mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(1_024);
        let writing = tokio::task::spawn_local(async move {
            while let Some((at, bytes)) = late.recv().await {
                tokio::time::sleep_until(at).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if sender.send((tokio::time::Instant::now() + delay, buffer[..read].to_vec())).await.is_err() {
                break;
            }
        }
        drop(sender);
        let _ = writing.await;
    };
    tokio::task::spawn_local(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(to).await else { continue };
            let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
            tokio::task::spawn_local(pass(near_read, far_write, delay));
            tokio::task::spawn_local(pass(far_read, near_write, delay));
        }
    });
    address
}

#[test]
fn an_etcd_that_is_not_there_yet_is_waited_for_and_one_that_lost_its_data_is_filled_again() {
    run(async || {
        let mut etcd = Etcd::absent();
        let file = config(&by_etcd(etcd.address()), 0);
        let control = Process::start(&["control"], &file);
        let plane = Process::start(&["proxy", "--cluster", "a"], &file);
        let waits = |status: &StatusView| {
            status
                .control
                .as_ref()
                .is_some_and(|c| c.standby_reason.as_ref().is_some_and(|why| why.starts_with("nobody is known to lead: etcd: ")))
        };
        control.until("it says that etcd does not answer", waits).await;
        let status = plane.until("it says so, too", |s| s.proxy.as_ref().is_some_and(|p| p.controller_error.is_some())).await;
        assert_eq!(status.generation, Some(Generation(0)), "it serves by its own plan meanwhile");
        etcd.restart();
        control.until("it leads", leads).await;
        let first = plane.until("it follows", |status| status.generation > Some(Generation(0))).await.generation;

        // Everything etcd had is gone.
        etcd.kill();
        etcd.lose_data();
        etcd.restart();
        let before = first.expect("in force");
        let is_above = |status: &StatusView| status.generation.is_some_and(|now| now.epoch() > before.epoch());
        plane.until("a new epoch", is_above).await;
        // The data plane may have missed some; the controller keeps all.
        let store = DirStore::open(&control.folder.path().join("snapshots")).expect("opened");
        let (lost, filled): (Vec<_>, Vec<_>) =
            store.list().expect("listed").into_iter().partition(|g| g.epoch() <= before.epoch());
        let [old, new] = [lost.last(), filled.first()].map(|g| store.load(*g.expect("published")).expect("kept"));
        assert_eq!(new.routes, old.routes, "nothing moves");
        assert!(new.reason.contains("etcd did not have generation"), "{}", new.reason);
    });
}

#[test]
fn a_slow_and_often_compacted_etcd_is_followed_and_its_leader_stays() {
    run(async || {
        let etcd = Etcd::start();
        let slow = delaying_relay(etcd.address(), Duration::from_millis(40)).await;
        let far = config(&by_etcd(slow), 1_200_000);
        let leader = Process::start(&["control"], &far);
        leader.until("it leads", leads).await;
        // The one that stands by has no delay: it must not take lateness for silence.
        let near = Process::start(&["control"], &config(&by_etcd(etcd.address()), 1_200_000));
        let plane = Process::start(&["proxy", "--cluster", "a"], &far);
        near.until("it stands by", |s| s.control.as_ref().is_some_and(|c| c.standby_reason.is_some())).await;
        let mut raw = etcd.raw().await;
        let mut held = plane.until("it follows", |status| status.generation > Some(Generation(0))).await.generation;
        for _ in 0..6 {
            stir(&etcd).await;
            held = plane.until("it goes on", |status| status.generation > held).await.generation;
            let revision = raw.get("/test/head", None).await.expect("answered").header().expect("a header").revision();
            raw.compact(revision, Some(CompactionOptions::new())).await.expect("compacted");
        }
        let status = AdminClient::new(&leader.socket()).status().await.expect("answers");
        assert!(leads(&status), "{status:?}");
        let epoch = held.expect("in force").epoch();
        assert_eq!(epoch, 1, "nobody took over");
    });
}

#[test]
fn an_etcd_that_dies_in_the_middle_of_a_publish_leaves_what_was_in_force() {
    run(async || {
        let mut etcd = Etcd::start();
        let file = config(&by_etcd(etcd.address()), 4_000_000);
        let control = Process::start(&["control"], &file);
        let plane = Process::start(&["proxy", "--cluster", "a"], &file);
        control.until("it leads", leads).await;
        plane.until("it follows", |status| status.generation > Some(Generation(0))).await;
        let mut half_written = 0;
        for _ in 0..4 {
            let before = AdminClient::new(&plane.socket()).status().await.expect("answers").generation.expect("in force");
            let raw = etcd.raw().await;
            let mut watch =
                raw.watch_client().watch("/test/snapshots/", Some(WatchOptions::new().with_prefix())).await.expect("watched");
            stir(&etcd).await;
            // A first piece shows: the head comes four pieces later.
            loop {
                let message =
                    tokio::time::timeout(PATIENCE, watch.message()).await.expect("publishes").expect("watched").expect("open");
                let is_first = |event: &etcd_client::Event| {
                    event.event_type() == EventType::Put && event.kv().is_some_and(|kv| kv.key().ends_with(b"/0000"))
                };
                if message.events().iter().any(is_first) {
                    break;
                }
            }
            etcd.kill();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let during = AdminClient::new(&plane.socket()).status().await.expect("answers").generation.expect("in force");
            half_written += usize::from(during == before);
            etcd.restart();
            stir(&etcd).await;
            plane.until("it goes on when etcd is back", |status| status.generation > Some(during)).await;
        }
        assert!(half_written > 0, "etcd never died before the head was written");
        let store = DirStore::open(&plane.folder.path().join("snapshots")).expect("opened");
        for generation in store.list().expect("listed") {
            store.load(generation).expect("whole and legal");
        }
    });
}

#[test]
fn a_controller_on_a_full_disk_keeps_its_last_snapshot_says_why_and_goes_on_when_there_is_room() {
    run(async || {
        let Some(disk) = TinyDisk::mount() else { return };
        let mut config = config::parse(&config("", 0)).expect("legal");
        config.store.dir = disk.path().join("snapshots");
        config.control.health_period = Duration::from_secs(3_600);
        let controller = Controller::start(Arc::new(config), Clock::start(), None).expect("started");
        let mut snapshots = controller.snapshots.clone();
        let first = snapshots.wait_for(Option::is_some).await.expect("runs").clone().expect("published");
        let filler = disk.path().join("filler");
        std::fs::write(&filler, vec![0; 1 << 20]).expect_err("more than the disk has room for");
        controller.ask(|done| Command::Report(report(), done)).await.expect("taken");
        let mut status = controller.status.clone();
        let says = |decision: &str| decision.starts_with("cannot publish: write ") && decision.contains("No space left");
        let full = status.wait_for(|status| says(&status.last_decision));
        let failures = tokio::time::timeout(PATIENCE, full).await.expect("it says so").expect("runs").failures;
        assert!(failures > 0);
        let held: Arc<Snapshot> = controller.snapshots.borrow().clone().expect("published");
        let kept = DirStore::open(&disk.path().join("snapshots")).expect("opened");
        assert_eq!(kept.latest().expect("readable").as_ref(), Some(&*held), "what is in force is on disk, whole");
        assert!(held.generation >= first.generation);

        std::fs::remove_file(&filler).expect("removed");
        let newer = snapshots.wait_for(|s| s.as_ref().is_some_and(|s| s.generation > held.generation));
        let newer = tokio::time::timeout(PATIENCE, newer).await.expect("it goes on").expect("runs").clone().expect("published");
        assert_eq!(kept.latest().expect("readable").as_ref(), Some(&*newer));
    });
}

#[test]
fn data_planes_follow_a_directory_that_they_share_with_the_controller() {
    run(async || {
        let control = Process::start(&["control"], &config("", 0));
        let shared = control.folder.path().join("snapshots");
        let plane = Process::start(&["proxy", "--cluster", "b"], &config(&format!("url = \"file://{}\"", shared.display()), 0));
        let first = plane.until("it follows", |status| status.generation > Some(Generation(0))).await.generation;
        control.ask(&["weights", "set", "--cluster", "b", "--class", "chat", "e1=1"]);
        plane.until("it goes on", |status| status.generation > first).await;
        assert!(plane.ask(&["weights"]).contains("set by hand"));
        let own = DirStore::open(&plane.folder.path().join("snapshots")).expect("opened");
        assert!(!own.list().expect("listed").is_empty(), "it keeps what it got on a disk of its own");
        assert!(DirStore::open(&shared).expect("opened").generations().await.expect("listed").len() >= 2);
    });
}

#[test]
fn weights_of_a_controller_that_stays_dead_go_over_to_capacity_and_come_back_with_it() {
    run(async || {
        let file = config("stale_after = \"10s\"", 0);
        let mut control = Process::start(&["control"], &file);
        let url = format!("url = \"http://{}\"\nstale_after = \"10s\"", control.listen);
        let plane = Process::start(&["proxy", "--cluster", "b"], &config(&url, 0));
        plane.until("it follows", |status| status.generation > Some(Generation(0))).await;
        control.kill();
        let clock = Clock::start();
        let weights = async || {
            let view = AdminClient::new(&plane.socket()).weights().await.expect("answers");
            let route = view.routes.into_iter().find(|route| route.cluster == "b").expect("its own");
            let weight = |engine: &str| route.weights.iter().find(|w| w.engine == engine).map_or(0.0, |w| w.weight);
            [weight("e1"), weight("e2"), weight("e3")]
        };
        let before = weights().await;
        // Capacities are 100, 100 and 80; the ring is as far as the plan went.
        let ring: [f64; 3] = if before[2] > 0.0 { [100.0, 100.0, 80.0] } else { [100.0, 100.0, 0.0] };
        let all: f64 = ring.iter().sum();
        plane.until("its trust falls", |s| s.proxy.as_ref().is_some_and(|p| p.plan_share < 1.0)).await;
        assert!(clock.now() > Duration::from_secs(9), "not before the controller was silent for long: {:?}", clock.now());
        // The tables follow a moment later, and the next step of trust is a second away.
        let (trust, after) = loop {
            let after = weights().await;
            let trust = AdminClient::new(&plane.socket()).status().await.expect("answers").proxy.expect("a proxy").plan_share;
            if after != before && after == weights().await {
                break (trust, after);
            }
            assert!(clock.now() < PATIENCE, "weights stay {after:?} with {trust} left");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        for engine in 0..3 {
            let wanted = trust * before[engine] + (1.0 - trust) * ring[engine] / all;
            assert!(
                (after[engine] - wanted).abs() < 0.08,
                "{after:?} from {before:?} with {trust} left; wanted {wanted} of {engine}"
            );
            let (from, to) = ((before[engine] - ring[engine] / all).abs(), (after[engine] - ring[engine] / all).abs());
            assert!(to < from || from < 1e-3, "{after:?} is no nearer to capacity than {before:?}");
        }
        assert!(plane.ask(&["status"]).contains("of its plan counts"));
        control.restart(&["control"]);
        plane.until("the controller is back", |s| s.proxy.as_ref().is_some_and(|p| p.plan_share == 1.0)).await;
        let back = weights().await;
        assert!(back.iter().zip(before).all(|(now, then)| (now - then).abs() < 0.02), "{back:?} is not {before:?}, as published");
    });
}
