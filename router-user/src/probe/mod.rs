//! Metrics of engines: requests that they hold, use of the KV cache, latencies, live replicas.
//!
//! The readers ([`from_metrics`], [`from_loads`], [`from_orca`]) are pure: they take any bytes and
//! return the signals in them. They know the names of vLLM, SGLang and its router, trtllm-serve,
//! Triton, TGI and llama.cpp, old and new. A signal that an engine does not give is `None` and
//! never 0: unknown is not idle. [`watch`] scrapes one engine periodically, and [`Reading`] keeps
//! the last signals and the last error.
//!
//! Time between tokens (`itl` here, as metrics name it; TBOT in profiles) is the gap between two
//! output tokens of a request.

mod exposition;
mod families;
mod loads;
mod orca;
mod reading;
mod scrape;
mod signals;

pub use families::from_metrics;
pub use loads::from_loads;
pub use orca::from_orca;
pub use reading::Reading;
pub use scrape::{Scrape, ScrapeError, client, watch};
pub use signals::{EngineSignals, Family, PrefixCache, Timings};
