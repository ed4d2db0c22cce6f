//! The configuration file: read in two stages, every mistake reported at once.
//!
//! `reader` walks the TOML with its places and collects mistakes; `raw` is exactly what the file says; `resolve` makes of it a
//! [`Config`], which cannot hold an illegal value. `render` prints a [`Config`] in the form it was read from.

mod defaults;
mod raw;
mod reader;
mod render;
mod resolve;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::model::{ClassId, ClusterId, Fleet};

pub(crate) use reader::suggest;

/// A whole, legal configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub fleet: Fleet,
    pub proxy: Proxy,
    pub admin: Admin,
    pub control: Control,
    pub store: Store,
    pub kernel: Kernel,
}

/// `[proxy]`: where clients connect, and the bounds of what they may send and wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct Proxy {
    pub listen: Vec<SocketAddr>,
    /// Worker threads; 0 means one per core.
    pub workers: usize,
    pub max_connections: usize,
    pub max_body_bytes: usize,
    pub connect_timeout: Duration,
    pub ttft_timeout: Duration,
    pub gap_timeout: Duration,
    pub max_in_flight_per_engine: usize,
}

/// `[admin]`: what operators and Prometheus talk to.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub socket: PathBuf,
    pub listen: Option<SocketAddr>,
}

/// `[control]`: how often to plan, and where data planes reach the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    pub period: Duration,
    pub listen: SocketAddr,
    /// Fraction of every capacity the plan leaves free, 0 to below 1.
    pub headroom_frac: f64,
    /// Largest share of the demand that one plan may move while the weights in force break no rule, above 0 to 1.
    pub move_limit_frac: f64,
    /// Whether distances are what data planes measure; else they are what `[rtt_ms]` says.
    pub measured_rtt: bool,
    pub health_period: Duration,
    /// Cluster in which a new plan is tried before the others follow; `None` publishes to all at once.
    pub canary: Option<ClusterId>,
    /// How long a trial takes, in periods.
    pub canary_periods: u32,
    /// How often engines are asked for their metrics; `None`: never.
    pub scrape_period: Option<Duration>,
}

/// `[store]`: where snapshots live, and where a data plane fetches them.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    pub dir: PathBuf,
    /// The controller's base URL, or its directory as `file:///PATH`; derived from `control.listen` unless given.
    pub url: String,
    /// Addresses of an etcd in which controllers and data planes meet instead; empty without one.
    pub etcd: Vec<SocketAddr>,
    /// Where this fleet's keys are in that etcd.
    pub prefix: String,
    /// How long a leader that is silent stays the leader.
    pub lease: Duration,
    /// Age of a snapshot at which a data plane without a controller begins to doubt it.
    pub stale_after: Duration,
}

/// `[kernel]`: steering without a proxy in the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub enabled: bool,
    pub service: SocketAddr,
    /// Class whose weights the service follows.
    pub class: ClassId,
    pub pin_dir: PathBuf,
    /// The cgroup whose listeners register themselves; the root of the cgroup v2 mount unless given.
    pub cgroup: Option<PathBuf>,
}

/// One mistake, with its place and the wanted form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Counts from 1; 0 when the place is the file as a whole.
    pub line: usize,
    /// Key path, such as `engine[1].address`; empty for the file as a whole.
    pub path: String,
    pub message: String,
}

/// Why a file is no configuration: all its mistakes, in the order of their places.
#[derive(Debug, Error)]
pub struct ConfigErrors {
    pub file: PathBuf,
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:", self.file.display())?;
            if mistake.line > 0 {
                write!(f, "{}:", mistake.line)?;
            }
            if !mistake.path.is_empty() {
                write!(f, " {}:", mistake.path)?;
            }
            write!(f, " {}", mistake.message)?;
        }
        Ok(())
    }
}

/// Reads and resolves a configuration file.
///
/// Errors: the file cannot be read, or every mistake in it.
pub fn load(file: &Path) -> Result<Config, ConfigErrors> {
    let failed = |mistakes| ConfigErrors { file: file.to_owned(), mistakes };
    let source = std::fs::read_to_string(file)
        .map_err(|error| failed(vec![Mistake { line: 0, path: String::new(), message: format!("cannot be read: {error}") }]))?;
    parse(&source).map_err(failed)
}

/// Resolves the text of a configuration file.
///
/// Errors: every mistake, in the order of their places; never an empty list.
pub fn parse(source: &str) -> Result<Config, Vec<Mistake>> {
    let reader = reader::Reader::new(source);
    // In a broken document what seems to be missing may only be hidden, so nothing beyond the syntax is reported.
    let config = if reader.is_clean() { resolve::resolve(&raw::read(&reader), &reader) } else { None };
    reader.finish(config)
}

impl Config {
    /// The configuration as TOML, with every default spelled out; reading it again gives an equal [`Config`].
    pub fn to_toml(&self) -> String {
        render::to_toml(self)
    }
}

#[cfg(test)]
mod tests;
