//! The numbers behind every key that may be left out, each with its reason.

use std::time::Duration;

pub(super) const PROXY_LISTEN: &str = "127.0.0.1:8080";
/// One worker: the rest of the machine is the engines' on a small host; 0 asks for one per core.
pub(super) const PROXY_WORKERS: usize = 1;
/// Two descriptors each must fit the usual limit of 20,000 open files.
pub(super) const MAX_CONNECTIONS: usize = 8_192;
/// Long prompts and images in base64 fit; the body is kept for replay, so this also bounds memory per request.
pub(super) const MAX_BODY_BYTES: usize = 32 << 20;
/// A SYN that got no answer is repeated after 1 s by the kernel: by then another engine is the better choice.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Prefill of a very long prompt takes tens of seconds on a loaded engine.
pub(super) const TTFT_TIMEOUT: Duration = Duration::from_secs(120);
/// No engine that still generates is silent for longer between two tokens.
pub(super) const GAP_TIMEOUT: Duration = Duration::from_secs(60);
/// Beyond this, requests only queue inside the engine; vLLM's own default runs 256 sequences, twice that still fills the batch.
pub(super) const MAX_IN_FLIGHT_PER_ENGINE: usize = 512;

pub(super) const ADMIN_SOCKET: &str = "run/ilb.sock";
pub(super) const ADMIN_LISTEN: &str = "127.0.0.1:9900";

pub(super) const CONTROL_LISTEN: &str = "127.0.0.1:9800";
/// Demand estimates need a few seconds of arrivals; faster planning would only follow noise.
pub(super) const CONTROL_PERIOD: Duration = Duration::from_secs(2);
pub(super) const HEADROOM_FRAC: f64 = 0.0;
/// A prefill of a thousand tokens that one request in ten would have found in a cache, at 20,000 tokens/s. To be replaced by what the
/// hit shares of a fleet say.
pub(super) const MOVE_PRICE_MS: f64 = 5.0;
/// What somebody wrote down may be about more than time, such as the price of a link; and where nothing is far, as on one machine, it is
/// the only distance there is.
pub(super) const MEASURED_RTT: bool = false;
/// Two failed probes take an engine out of the plan: about two seconds, long after the data planes have stopped using it.
pub(super) const HEALTH_PERIOD: Duration = Duration::from_secs(1);
/// What engines say of themselves corrects the plan within a few periods. Faster than that, a page of metrics costs an engine more than it
/// is worth: some stall their own event loop over it.
pub(super) const SCRAPE_PERIOD: Duration = Duration::from_secs(5);
/// Shortest such period; 0 turns it off.
pub(super) const SCRAPE_PERIOD_LEAST: Duration = Duration::from_millis(500);

/// Ten seconds at the default period: enough requests of a busy cluster, and a bad plan does not last.
pub(super) const CANARY_PERIODS: u32 = 5;

pub(super) const STORE_DIR: &str = "run/snapshots";
pub(super) const STORE_PREFIX: &str = "/ilb";
/// A leader that is dead is replaced within this time; etcd itself grants no less than 2 s by default.
pub(super) const STORE_LEASE: Duration = Duration::from_secs(5);
/// Demand drifts by more than an optimum is worth within minutes; weights by capacity are then the safer guess.
pub(super) const STORE_STALE_AFTER: Duration = Duration::from_secs(600);

pub(super) const KERNEL_SERVICE: &str = "127.0.0.1:8000";
pub(super) const KERNEL_PIN_DIR: &str = "/sys/fs/bpf/ilb";
