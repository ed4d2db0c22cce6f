//! One of two clusters reports ten times its demand: the fleet has room for what there is, so
//! nobody is refused.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::front::{Running, ilb};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Traffic};
use crate::net::Reserved;
use crate::process;

const ENGINES: usize = 4;

/// Of each engine.
const CAPACITY_RPS: f64 = 50.0;

/// Of each cluster: six tenths of the fleet together.
const OFFERED_RPS: f64 = 60.0;

const CLUSTERS: [&str; 2] = ["honest", "tenfold"];

/// The exaggeration begins after so long, in s.
const CALM_S: f64 = 10.0;

/// Length of the exaggeration unless `--time` says otherwise.
const LENGTH: Duration = Duration::from_secs(40);

/// Time between two reports, as data planes report.
const PERIOD_S: f64 = 1.0;

/// Demand that comes on top of what the cluster really has, in times of that.
const EXTRA: f64 = 9.0;

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let fleet = Fleet::new(ENGINES, CAPACITY_RPS, vec![Class::chat(OFFERED_RPS)]);
    let engines = bed.engines(&fleet).await?;
    let addresses: Vec<SocketAddr> = engines.iter().map(|engine| engine.address).collect();
    let control = Reserved::new(1)?;
    let mut proxies = Vec::new();
    for (role, cluster) in ["run", "proxy"].into_iter().zip(CLUSTERS) {
        proxies.push(start(bed, &fleet, &addresses, (role, cluster), control[0]).await?);
    }
    let flow = [Flow::chats(OFFERED_RPS)];
    let traffic: Vec<Traffic> =
        proxies.iter().zip(0..).map(|(proxy, number)| Traffic::start(proxy.front, &flow, bed.seed * 2 + number)).collect();
    traffic[0].until(CALM_S).await;
    let end_s = CALM_S + time.unwrap_or(LENGTH).as_secs_f64();
    while traffic[0].at_s() < end_s {
        report(control[0]).await?;
        traffic[0].until(traffic[0].at_s() + PERIOD_S).await;
    }
    let mut records = Vec::new();
    for traffic in traffic {
        records.extend(traffic.finish().await);
    }
    tokio::task::spawn_blocking(move || drop((proxies, engines))).await.context("failed to end the processes")?;

    let during = analysis::within(&records, CALM_S, end_s);
    let mut found = Figures::default();
    found.note("requests", during.len() as f64);
    found.judge("refused %", analysis::percent(&during, Record::is_refused), Limit::AtMost(0.05));
    found.note("failed %", analysis::percent(&during, |record| record.failure.is_some()));
    found.note("TTFT p50 ms", analysis::ttft_ms(&during, 0.5));
    found.note("p99", analysis::ttft_ms(&during, 0.99));
    Ok(found)
}

/// Starts the `ilb` of one cluster; the first one has the controller.
async fn start(
    bed: &Bed,
    fleet: &Fleet,
    engines: &[SocketAddr],
    (role, cluster): (&str, &str),
    control: SocketAddr,
) -> Result<Running> {
    let folder: PathBuf = bed.folder().join(cluster);
    std::fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let ports = Reserved::new(2)?;
    let place = ilb::Place { front: ports[0], admin: ports[1], control, folder: Path::new(&folder) };
    let text = ilb::config(fleet, &CLUSTERS, engines, &place);
    bed.front.start_ilb(&[role, "--cluster", cluster], &text, &place, ports).await
}

/// Reports more demand of the second cluster, as one more data plane of it.
async fn report(control: SocketAddr) -> Result<()> {
    let body = serde_json::json!({
        "cluster": CLUSTERS[1],
        "instance": "extra",
        "window_ms": (PERIOD_S * 1e3) as u64,
        "arrivals": [["chat", (EXTRA * OFFERED_RPS * PERIOD_S) as u64]],
    });
    let (status, answer) = process::request(control, "POST", "/v1/demand", &body.to_string()).await?;
    ensure!(status == 204, "the controller answered a report with {status}: {}", String::from_utf8_lossy(&answer));
    Ok(())
}
