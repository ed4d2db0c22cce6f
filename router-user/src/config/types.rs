//! A resolved configuration. None of these types can hold an illegal value that came from a file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{ClassId, ClusterId, Fleet};

/// A whole, legal configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub fleet: Fleet,
    pub proxy: ProxyConfig,
    pub admin: Admin,
    pub control: Control,
    pub store: Store,
    pub kernel: Kernel,
}

/// `[proxy]`: where clients connect, and the bounds of what they may send and wait for.
///
/// Each field is the key of the same name; docs/configuration.md has units, ranges and reasons.
/// Bounds are per worker unless they say otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxyConfig {
    pub listen: Vec<SocketAddr>,
    /// Worker threads; 0 means one per core.
    pub workers: usize,
    pub max_connections: usize,
    pub max_head_bytes: usize,
    pub max_head_fields: usize,
    pub max_body_bytes: usize,
    pub max_bodies_bytes: usize,
    pub max_in_flight_per_engine: usize,
    /// Of all workers together; 0 turns the queue off.
    pub max_waiting: usize,
    pub max_idle_per_engine: usize,
    pub max_attempts: usize,
    /// At least 1.
    pub load_factor: f64,
    pub connect_timeout: Duration,
    pub ttft_timeout: Duration,
    pub gap_timeout: Duration,
    pub client_idle_timeout: Duration,
    pub head_timeout: Duration,
    pub body_gap_timeout: Duration,
    /// 0 asks for no rate.
    pub min_upload_bytes_per_s: u64,
    pub client_stall_timeout: Duration,
    /// 0 asks for no rate.
    pub min_download_bytes_per_s: u64,
    pub engine_idle_timeout: Duration,
    /// Of all workers together; 0 remembers none.
    pub max_stored_ids: usize,
    pub stored_id_max_age: Duration,
}

/// `[admin]`: what operators and Prometheus talk to.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub socket: PathBuf,
    /// Address of `/metrics`, `/healthz` and `/readyz`; `None` is "off".
    pub listen: Option<SocketAddr>,
}

/// `[control]`: how often to plan, and where data planes reach the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    pub period: Duration,
    pub listen: SocketAddr,
    /// Fraction of every capacity that plans leave free, from 0 to below 1.
    pub headroom_frac: f64,
    /// Largest share of the demand that one plan may move while the active weights break no rule,
    /// above 0 and at most 1.
    pub move_limit_frac: f64,
    /// Whether distances come from data planes; otherwise they come from `[rtt_ms]`.
    pub measured_rtt: bool,
    pub health_period: Duration,
    /// Cluster in which a new plan is tried before the others follow; `None` publishes to all at
    /// once.
    pub canary: Option<ClusterId>,
    /// Length of a trial, in periods.
    pub canary_periods: u32,
    /// How often the controller reads the metrics of each engine; `None` means never.
    pub scrape_period: Option<Duration>,
}

/// `[store]`: where snapshots live, and where a data plane fetches them.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    pub dir: PathBuf,
    /// The controller's base URL, or its directory as `file:///PATH`.
    pub url: String,
    /// Addresses of an etcd in which controllers and data planes meet instead; empty without one.
    pub etcd: Vec<SocketAddr>,
    /// Path of this fleet's keys in that etcd.
    pub prefix: String,
    /// Time after which a silent leader is replaced.
    pub lease: Duration,
    /// Age of a snapshot at which a data plane without a controller begins to discount it.
    pub stale_after: Duration,
}

/// `[kernel]`: steering of connections in the kernel, without a proxy on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub enabled: bool,
    pub service: SocketAddr,
    /// Class whose weights the service follows.
    pub class: ClassId,
    pub pin_dir: PathBuf,
    /// The cgroup whose listeners register themselves; `None` is the root of the cgroup v2 mount.
    pub cgroup: Option<PathBuf>,
}
