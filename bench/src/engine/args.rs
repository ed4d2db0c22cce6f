//! The command line of the false engine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use router_user::model::{Curve, Profile};

use super::Pace;

/// Start a false engine, either from a configuration or from knots given here
///
/// Example: ilb-bench engine --listen 127.0.0.1:18001 --capacity-rps 100 --ttft
/// 0:120,50:150,100:900 --tbot 0:8,100:20
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Take address, models and profile from this configuration; needs --engine
    #[arg(short = 'c', long, value_name = "FILE", requires = "engine")]
    pub config: Option<PathBuf>,
    /// Name of the engine in the configuration
    #[arg(long, value_name = "NAME", requires = "config")]
    pub engine: Option<String>,
    /// Address to listen on [default: the engine's in the configuration, else 127.0.0.1:18001]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// The name of the engine in x-engine and system_fingerprint [default: the engine's name, else
    /// "engine"]
    #[arg(long)]
    pub name: Option<String>,
    /// Model served; repeat for several [default: the engine's models, else "demo"]
    #[arg(long = "model", value_name = "NAME")]
    pub models: Vec<String>,
    /// Load at which the engine is full, in requests/s; requests above it wait in a queue
    #[arg(long, value_name = "RPS")]
    pub capacity_rps: Option<f64>,
    /// Time to first token, in ms, by load in requests/s
    #[arg(long, value_name = "LOAD:MS,...")]
    pub ttft: Option<String>,
    /// Time between two tokens, in ms, by load in requests/s
    #[arg(long, value_name = "LOAD:MS,...")]
    pub tbot: Option<String>,
    /// Fixed time to first token, in ms, whatever the load: shorthand for --ttft 0:N
    #[arg(long, value_name = "MS", conflicts_with = "ttft")]
    pub prefill_ms: Option<f64>,
    /// Multiplies the load axis: at 0.2 an engine of 100 requests/s is full at 20, with the
    /// latencies it would have at 100
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Time constant of the load measurement [default: 2s divided by --scale, so that it averages
    /// over as many requests]
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub load_window: Option<Duration>,
    /// Answer everything at once and never queue: for measuring what stands in front of it
    #[arg(long, conflicts_with_all = ["config", "capacity_rps", "ttft", "tbot", "prefill_ms", "scale"])]
    pub instant: bool,
    /// Time that each prompt token (4 bytes) adds to the first token's, in ms: long prompts then
    /// take as long as they do
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub prompt_token_ms: f64,
    /// Write a line for each request that arrives: CLOCK_MONOTONIC in ns, the number N of a mark
    /// [#N] in its body or -, and the requests in the engine before it
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Write each token's CLOCK_MONOTONIC time into its text, for measuring the delay of each event
    #[arg(long)]
    pub stamp: bool,
}

/// The resolved command line.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) listen: SocketAddr,
    pub(super) name: String,
    pub(super) models: Vec<String>,
    pub(super) pace: Pace,
    pub(super) load_window: Duration,
    pub(super) prompt_token_ms: f64,
    pub(super) journal: Option<PathBuf>,
    pub(super) is_stamping: bool,
}

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 18001);

/// At full scale, long enough to smooth Poisson arrivals at 100 requests/s to 5 %, short enough to
/// follow a load step within seconds.
const LOAD_WINDOW: Duration = Duration::from_secs(2);

impl Args {
    pub(super) fn settle(self) -> Result<Settings> {
        ensure!(self.scale.is_finite() && self.scale > 0.0, "--scale is {}; wanted a number > 0", self.scale);
        let is_cost = self.prompt_token_ms.is_finite() && self.prompt_token_ms >= 0.0;
        ensure!(is_cost, "--prompt-token-ms is {}; wanted a number >= 0", self.prompt_token_ms);
        let load_window = self.load_window.unwrap_or_else(|| LOAD_WINDOW.div_f64(self.scale.min(1.0)));
        ensure!(!load_window.is_zero(), "--load-window is zero; wanted a duration > 0");
        let (mut listen, mut name, mut models) = (DEFAULT_LISTEN, "engine".to_owned(), vec!["demo".to_owned()]);
        let (mut profile, mut replicas) = (default_profile(self.instant)?, 1);
        if let (Some(file), Some(wanted)) = (&self.config, &self.engine) {
            let config = router_user::config::load(file)?;
            let Some(id) = config.fleet.engine(wanted) else {
                let known: Vec<_> = config.fleet.engines.iter().map(|e| e.name.as_str()).collect();
                bail!("{} has no engine {wanted:?}; it has {}", file.display(), known.join(", "));
            };
            let engine = &config.fleet.engines[id.index()];
            (listen, name, models) = (engine.address, engine.name.clone(), engine.models.clone());
            (profile, replicas) = (config.fleet.profile_of(id).clone(), engine.replicas);
        }
        if let Some(capacity_rps) = self.capacity_rps {
            ensure!(capacity_rps > 0.0, "--capacity-rps is {capacity_rps}; wanted a number > 0");
            profile.capacity_rps = capacity_rps;
        }
        if let Some(prefill_ms) = self.prefill_ms {
            profile.ttft_ms = Curve::new(vec![(0.0, prefill_ms)]).context("--prefill-ms")?;
        }
        if let Some(text) = &self.ttft {
            profile.ttft_ms = knots(text).context("--ttft")?;
        }
        if let Some(text) = &self.tbot {
            profile.tbot_ms = knots(text).context("--tbot")?;
        }
        Ok(Settings {
            listen: self.listen.unwrap_or(listen),
            name: self.name.unwrap_or(name),
            models: if self.models.is_empty() { models } else { self.models },
            pace: Pace::new(profile, f64::from(replicas) * self.scale),
            load_window,
            prompt_token_ms: self.prompt_token_ms,
            journal: self.journal,
            is_stamping: self.stamp,
        })
    }
}

/// Without a configuration: a small engine whose latencies do not depend on load, or one that costs
/// no time at all.
fn default_profile(is_instant: bool) -> Result<Profile> {
    let (capacity_rps, ttft_ms, tbot_ms) = if is_instant { (f64::INFINITY, 0.0, 0.0) } else { (100.0, 50.0, 10.0) };
    Ok(Profile {
        name: "command-line".to_owned(),
        capacity_rps,
        ttft_ms: Curve::new(vec![(0.0, ttft_ms)])?,
        tbot_ms: Curve::new(vec![(0.0, tbot_ms)])?,
        law: None,
        kv_tokens: None,
    })
}

/// Parses `LOAD:MS,LOAD:MS`.
fn knots(text: &str) -> Result<Curve> {
    let knots = text
        .split(',')
        .map(|knot| {
            let pair =
                knot.split_once(':').and_then(|(load, value)| Some((load.trim().parse().ok()?, value.trim().parse().ok()?)));
            pair.with_context(|| format!("knot is {knot:?}; wanted LOAD:MS, such as 50:150"))
        })
        .collect::<Result<Vec<(f64, f64)>>>()?;
    Ok(Curve::new(knots)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knots_are_read_and_mistakes_are_named() {
        assert_eq!(knots("0:120, 50:150").expect("good").knots(), [(0.0, 120.0), (50.0, 150.0)]);
        for (text, wanted) in [("0-120", "wanted LOAD:MS"), ("0:x", "wanted LOAD:MS"), ("0:2,1:1", "falls")] {
            let error = format!("{:#}", knots(text).expect_err(text));
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        }
    }

    #[test]
    fn a_scaled_engine_averages_over_as_many_requests() {
        let args = Args::parse_from(["engine", "--scale", "0.2", "--capacity-rps", "100"]);
        let settings = args.settle().expect("good");
        assert_eq!(settings.load_window, Duration::from_secs(10));
        assert!((settings.pace.capacity_rps() - 20.0).abs() < 1e-9);
    }
}
