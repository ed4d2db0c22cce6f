//! The controller dies, then an engine: a data plane goes by the weights that were made for that
//! loss beforehand.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use router_user::clock::Clock;
use router_user::publish::Generation;
use router_user::publish::snapshot::{Share, Snapshot};
use router_user::publish::store::DirStore;

use super::process::Process;
use super::run;
use crate::proxy::world::{Client, Engine, answer};

/// Requests by which shares are measured: four standard deviations of a share are then below the
/// bound.
const REQUESTS: usize = 20_000;
/// How far a share of the traffic may be from its weight.
const POINTS: f64 = 0.015;
const DEMAND_RPS: f64 = 64.0;
/// Longest time until an engine that is well again has its whole share: 60 s, and some for a slow
/// machine.
const RETURN_MAX: Duration = Duration::from_secs(120);

/// Two small engines nearby and a large one far away. If one of the small ones is lost, the other
/// cannot take all of it.
fn config(engines: &[SocketAddr], url: &str) -> String {
    let engine = |(at, address): (usize, &SocketAddr)| {
        let (region, profile) = [("near", "small"), ("near", "small"), ("far", "large")][at];
        format!(
            "[[engine]]\nname = \"e{}\"\nregion = \"{region}\"\naddress = \"{address}\"\nmodels = [\"demo\"]\nprofile = \"{profile}\"\n",
            at + 1
        )
    };
    let engines: String = engines.iter().enumerate().map(engine).collect();
    format!(
        r#"
[[cluster]]
name = "b"
region = "near"
demand_rps = {{ chat = {DEMAND_RPS} }}
{engines}
[rtt_ms.near]
near = 1
far = 400
[profile.small]
capacity_rps = 40
ttft_ms = [[0, 20], [30, 60], [40, 200]]
tbot_ms = [[0, 2], [40, 5]]
[profile.large]
capacity_rps = 80
ttft_ms = [[0, 20], [80, 100]]
tbot_ms = [[0, 2], [80, 5]]
[[class]]
name = "chat"
model = "demo"
output_tokens = 20
[control]
period = "500ms"
health_period = "200ms"
[store]
dir = "snapshots"
{url}
"#
    )
}

/// Sends requests without a session and compares who answered with the weights; none may fail.
fn check_shares(front: SocketAddr, snapshot: &Snapshot, weights: &[Share]) {
    let mut client = Client::new(front);
    let mut served: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..REQUESTS {
        let answer = client.ask("");
        assert_eq!(answer.status, 200, "{answer:?}");
        *served.entry(answer.engine().to_owned()).or_default() += 1;
    }
    for (at, engine) in snapshot.engines.iter().enumerate() {
        let weight = weights.iter().find(|share| share.engine.index() == at).map_or(0.0, |share| share.weight);
        let share = served.get(&engine.name).copied().unwrap_or(0) as f64 / REQUESTS as f64;
        assert!((share - weight).abs() <= POINTS, "{} has {share} of the traffic at weight {weight}: {served:?}", engine.name);
        let load_rps = share * DEMAND_RPS;
        assert!(load_rps <= engine.capacity_rps + POINTS * DEMAND_RPS, "{} is given {load_rps} requests/s", engine.name);
    }
}

#[test]
fn with_the_controller_dead_a_lost_engine_is_replaced_by_plan_and_returns() {
    run(async || {
        let mut engines = [Engine::echo("e1"), Engine::echo("e2"), Engine::echo("e3")];
        let addresses = engines.each_ref().map(|engine| engine.address);
        let mut control = Process::start(&["control"], &config(&addresses, ""));
        let plane = Process::start(&["proxy"], &config(&addresses, &format!("url = \"http://{}\"", control.listen)));
        plane.until("a published snapshot is in force", |status| status.generation > Some(Generation(0))).await;
        control.kill();
        let status = plane.until("it notices that the controller is gone", |s| {
            s.proxy.as_ref().is_some_and(|proxy| proxy.controller_error.is_some())
        });
        let generation = status.await.generation.expect("in force");
        let store = DirStore::open(&plane.folder.path().join("snapshots")).expect("opened");
        let snapshot = store.load(generation).expect("kept");
        let main = &snapshot.routes[0].weights;
        let failover = snapshot.failovers.iter().find(|a| a.lost.len() == 1 && a.lost[0].index() == 0).expect("one for e1");
        let without = &failover.routes[0].weights;
        assert_eq!(failover.routes[0].shed_frac, 0.0, "there is room for everything");
        // What is left of e1's weight is not simply shared out: that would drown e2.
        let renormalised = main[1].weight / (1.0 - main[0].weight);
        assert!(renormalised * DEMAND_RPS > 1.1 * snapshot.engines[1].capacity_rps, "{main:?}");
        check_shares(plane.listen, &snapshot, main);

        engines[0].kill();
        let mut client = Client::new(plane.listen);
        let in_use = |wanted: &'static [&'static str]| {
            move |status: &router_user::admin::StatusView| status.proxy.as_ref().is_some_and(|proxy| proxy.failover == wanted)
        };
        for _ in 0..200 {
            assert_eq!(client.ask("").status, 200, "the ranks bear the loss until then");
        }
        plane.until("the failover weights are in use", in_use(&["e1"])).await;
        check_shares(plane.listen, &snapshot, without);
        assert!(plane.ask(&["status"]).contains("failover weights for e1 in use"));
        assert!(plane.ask(&["weights"]).contains("failover weights for e1 in use"));

        engines[0] = Engine::on(TcpListener::bind(addresses[0]).expect("its old address"), |socket, _| answer(socket, "e1"));
        let status = plane.until("the engine is back", in_use(&[])).await;
        assert_eq!(status.generation, Some(generation));
        let store = DirStore::open(&plane.folder.path().join("snapshots")).expect("opened");
        assert_eq!(store.latest().expect("readable"), Some(snapshot.clone()), "nothing of it is kept on disk");
        // A returning engine is tried first, and then gets its share step by step.
        let clock = Clock::start();
        let multiplier = || {
            let engines: serde_json::Value = serde_json::from_str(&plane.ask(&["engines", "--json"])).expect("JSON");
            engines[0]["live"]["multiplier"].as_f64().expect("a number")
        };
        while multiplier() < 1.0 {
            assert!(clock.now() < RETURN_MAX, "e1 does not get its share back");
            assert_eq!(client.ask("").status, 200);
        }
        check_shares(plane.listen, &snapshot, main);
    });
}
