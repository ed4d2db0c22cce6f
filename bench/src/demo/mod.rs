//! The whole of ilb on one machine: false engines with distance between them, a control plane, a
//! proxy for each cluster, load, a live table.
//!
//! Two fleets of the same engines run at the same time under the same arrivals: one follows the
//! plan, in the other every request goes to the nearest engine that may serve it (its weights are
//! pinned, everything else is the same). Side by side, both see the same machine; one after the
//! other, they would not.
//!
//! A small machine cannot carry the rates of a fleet, so rates and capacities are scaled together.
//! Latencies are not, and the plan does not change either: it depends on the ratio of load to
//! capacity alone.

mod fleet;
mod table;
mod view;
mod window;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use router_user::config::{self, Config};
use tracing::info;

use crate::clock;
use fleet::{Fleet, Routing, Site};
use view::View;

/// Run a configuration's whole fleet with false engines and show it live, beside the same fleet
/// with nearest-only routing
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// The configuration
    #[arg(short = 'c', long, value_name = "FILE", default_value = "examples/three-regions.toml")]
    config: PathBuf,
    /// Share of the configuration's rates and capacities to run [default: what a third of this
    /// machine's cores can carry]
    #[arg(long)]
    scale: Option<f64>,
    /// Stop after this long; without it, at ctrl-c
    #[arg(long, value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Print each interval as a JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Folder of logs, sockets and snapshots; files of an earlier run are removed
    #[arg(long, value_name = "DIR", default_value = "run/demo")]
    dir: PathBuf,
    /// Seed of the arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use free ports for engines and proxies instead of the configuration's
    #[arg(long)]
    free_ports: bool,
}

/// Time between two looks at the fleets.
const INTERVAL: Duration = Duration::from_secs(2);

/// Without a terminal to redraw, a block of this many intervals' distance.
const INTERVALS_PER_BLOCK: u64 = 3;

/// CPU time of one streamed token on its whole way: engine, relay, proxy and client. Measured with
/// both fleets of the example at scale 0.4 (10,000 tokens/s) on two cores of an AMD EPYC, Linux
/// 6.18: 53 us.
const CPU_US_PER_TOKEN: f64 = 55.0;

/// Share of the cores the demonstration plans to use; the rest absorbs bursts, so that delays come
/// from the fleets and not from the machine.
const CPU_FRAC: f64 = 0.35;

pub async fn run(args: Args) -> Result<()> {
    let config = config::load(&args.config)?;
    let scale = args.scale.unwrap_or_else(|| fitting_scale(&config));
    ensure!(scale.is_finite() && scale > 0.0, "--scale is {scale}; wanted a number > 0");
    let dir = fresh(&args.dir)?;
    info!(config = %args.config.display(), scale, "starting two fleets");
    let site = Site { config: &config, scale, dir: &dir, seed: args.seed };
    let mut planned = Fleet::start(&site, Routing::Planned, args.free_ports).await?;
    let mut nearest = Fleet::start(&site, Routing::Nearest, true).await?;
    let mut load = [planned.load(&site)?, nearest.load(&site)?];

    let start = clock::now();
    let mut view = View::new(&config, scale, args.config.display().to_string());
    let mut tick = tokio::time::interval_at(start + INTERVAL, INTERVAL);
    let end = args.duration.map(|duration| start + duration);
    let stop = crate::net::stop_signal();
    tokio::pin!(stop);
    let is_live = std::io::stdout().is_terminal() && !args.json;
    let mut intervals = 0_u64;
    loop {
        let [of_planned, of_nearest] = &mut load;
        tokio::select! {
            result = &mut stop => { result?; break }
            report = of_planned.next() => view.planned.add(report?),
            report = of_nearest.next() => view.nearest.add(report?),
            now = tick.tick() => {
                intervals += 1;
                view.at = now - start;
                view.planned.look(&mut planned).await;
                view.nearest.look(&mut nearest).await;
                if args.json {
                    println!("{}", serde_json::to_string(&view.json())?);
                } else if is_live {
                    table::redraw(&table::text(&view, &planned))?;
                } else if intervals.is_multiple_of(INTERVALS_PER_BLOCK) {
                    println!("{}\n", table::text(&view, &planned));
                }
                if end.is_some_and(|end| now >= end) {
                    break;
                }
            }
        }
    }
    // Clients stop first, so that they do not count the end of the fleet as failures.
    drop(load);
    Ok(())
}

/// The scale at which both fleets together take [`CPU_FRAC`] of this machine's cores; at most 1.
fn fitting_scale(config: &Config) -> f64 {
    let fleet = &config.fleet;
    let tokens = |cluster: &router_user::model::Cluster| -> f64 {
        cluster.demand_rps.iter().zip(&fleet.classes).map(|(rps, class)| rps * class.output_tokens).sum()
    };
    let tokens_per_s: f64 = fleet.clusters.iter().map(tokens).sum();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
    let fitting = cores * CPU_FRAC * 1e6 / (2.0 * CPU_US_PER_TOKEN * tokens_per_s.max(1.0));
    // Two digits are precise enough.
    ((fitting * 100.0).floor() / 100.0).clamp(0.01, 1.0)
}

/// An empty folder, as an absolute path.
fn fresh(dir: &Path) -> Result<PathBuf> {
    let shown = dir.display();
    if dir.exists() {
        // Only files of an earlier run are removed: this folder's name comes from a command line.
        ensure!(
            dir.join(MARK).is_file() || is_empty(dir),
            "{shown} holds something else; wanted an empty folder or an earlier run's"
        );
        std::fs::remove_dir_all(dir).with_context(|| format!("failed to empty {shown}"))?;
    }
    std::fs::create_dir_all(dir).with_context(|| format!("failed to make {shown}"))?;
    std::fs::write(dir.join(MARK), "made by ilb-bench demo; removed by its next run\n")
        .with_context(|| format!("failed to write to {shown}"))?;
    dir.canonicalize().with_context(|| format!("failed to find {shown}"))
}

const MARK: &str = "made-by-ilb-bench-demo";

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}
