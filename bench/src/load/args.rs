//! The command line of the load generator.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Load one or several proxies or engines with streaming requests
///
/// Example: ilb-bench load --target a=http://127.0.0.1:8081@90 --target b=http://127.0.0.1:8082@120
/// --duration 60s --json
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Where to send, with a rate of its own; repeat for several
    #[arg(long = "target", value_name = "NAME=URL@RPS")]
    targets: Vec<Aim>,
    /// Where to send; repeat to spread --rps evenly over several
    #[arg(long = "url", value_name = "URL", conflicts_with = "targets")]
    urls: Vec<String>,
    /// Requests/s over all --url
    #[arg(long, value_name = "RPS", default_value_t = 10.0)]
    rps: f64,
    /// How long to send; without it, until ctrl-c
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(super) duration: Option<Duration>,
    /// Requests due in this first part are sent but not recorded
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0s")]
    pub(super) warm_up: Duration,
    /// The model to ask for
    #[arg(long, default_value = "demo")]
    pub(super) model: String,
    /// Output tokens of each request
    #[arg(long, default_value_t = 50)]
    pub(super) max_tokens: u32,
    /// Bytes of each prompt
    #[arg(long, default_value_t = 256)]
    pub(super) prompt_bytes: usize,
    /// Conversations; each request belongs to one of them, drawn at random, and names it in
    /// x-session-id. 0: none
    #[arg(long, default_value_t = 256)]
    pub(super) sessions: u64,
    /// Seed of arrivals and conversations
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Ask for whole answers instead of streams
    #[arg(long)]
    pub(super) no_stream: bool,
    /// Give up on a request after this long
    #[arg(long, value_parser = humantime::parse_duration, default_value = "120s")]
    pub(super) timeout: Duration,
    /// Most requests open at a time, per target; what is due beyond it fails as "in-flight"
    #[arg(long, default_value_t = 10_000)]
    pub(super) max_in_flight: usize,
    /// A request that leaves this much after it was due counts as late
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5ms")]
    pub(super) late_after: Duration,
    /// Length of an interval of the live report
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s")]
    pub(super) interval: Duration,
    /// Report every interval, not only the sum
    #[arg(long = "live")]
    pub(super) is_live: bool,
    /// Report as JSON, one object a line
    #[arg(long = "json")]
    pub(super) is_json: bool,
}

/// `NAME=URL@RPS`, not looked up yet.
#[derive(Clone, Debug, PartialEq)]
struct Aim {
    name: String,
    url: String,
    rate_rps: f64,
}

impl FromStr for Aim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, rest)| rest.rsplit_once('@').map(|(url, rps)| (name, url, rps)));
        let (name, url, rps) = parts.ok_or("wanted NAME=URL@RPS, such as a=http://127.0.0.1:8081@90")?;
        let rate_rps = rps.parse().ok().filter(|r: &f64| r.is_finite() && *r >= 0.0);
        let rate_rps = rate_rps.ok_or_else(|| format!("the rate is {rps:?}; wanted requests/s >= 0"))?;
        Ok(Self { name: name.to_owned(), url: url.to_owned(), rate_rps })
    }
}

/// Where to send, and how much.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    /// For the Host header.
    pub authority: String,
    pub address: SocketAddr,
    pub rate_rps: f64,
}

impl Args {
    /// The targets, looked up.
    pub(super) async fn targets(&self) -> Result<Vec<Target>> {
        ensure!(self.rps.is_finite() && self.rps >= 0.0, "--rps is {}; wanted a number >= 0", self.rps);
        ensure!(!self.interval.is_zero(), "--interval is zero; wanted a duration > 0");
        let share_rps = self.rps / self.urls.len().max(1) as f64;
        let urls = self.urls.iter().map(|url| Aim { name: authority(url).to_owned(), url: url.clone(), rate_rps: share_rps });
        let mut targets = Vec::new();
        for aim in self.targets.iter().cloned().chain(urls) {
            let authority = authority(&aim.url).to_owned();
            let found = tokio::net::lookup_host(&authority).await;
            let address = found
                .with_context(|| format!("failed to look up {authority:?}; wanted http://HOST:PORT"))?
                .next()
                .with_context(|| format!("{authority:?} has no address"))?;
            targets.push(Target { name: aim.name, authority, address, rate_rps: aim.rate_rps });
        }
        ensure!(!targets.is_empty(), "nothing to load; wanted --target or --url");
        Ok(targets)
    }
}

/// `HOST:PORT` of a plain HTTP URL; its path is not used.
fn authority(url: &str) -> &str {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_and_mistakes_named() {
        let aim: Aim = "a=http://127.0.0.1:8081/v1@90.5".parse().expect("good");
        assert_eq!((aim.name.as_str(), authority(&aim.url), aim.rate_rps), ("a", "127.0.0.1:8081", 90.5));
        for (text, wanted) in [("http://x", "NAME=URL@RPS"), ("a=b@-1", ">= 0"), ("a=b@x", ">= 0")] {
            let error = text.parse::<Aim>().expect_err(text);
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        }
    }
}
