//! What engines say of themselves: how many requests they hold, how full their KV cache is, how fast they answered, how many replicas live.
//!
//! The readers ([`from_metrics`], [`from_loads`], [`from_orca`]) are pure: any bytes in, what is known out. Names are those of vLLM, SGLang
//! and its router, trtllm-serve, Triton, TGI and llama.cpp, old and new. What an engine does not say is `None` and never 0: unknown is not
//! idle. [`watch`] asks one engine now and then, and [`Reading`] keeps what came of it.

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
