//! A false engine: OpenAI's API over HTTP/1.1, with latencies that follow a profile at its present
//! load.
//!
//! It generates nothing and needs little CPU, so that a whole fleet runs beside the measured
//! programs. Real are the parts that a router depends on: time to first token and between tokens
//! that grow with load, a queue that grows above capacity, generation that stops when the client
//! leaves, and faults on command. Load and latencies keep the profile's time scale: a scaled engine
//! (`--scale 0.2`) is full at a fifth of the profile's rate and keeps the profile's milliseconds.

mod admission;
mod api;
mod args;
mod fault;
mod generation;
mod journal;
mod meter;
mod metrics;
mod pace;
mod reply;
mod server;

use std::rc::Rc;

use anyhow::{Context, Result};
use tracing::info;

pub use args::Args;
pub use pace::Pace;

/// Serves until the process is told to stop.
pub async fn run(args: Args) -> Result<()> {
    let settings = args.settle()?;
    let listener = crate::net::listen(settings.listen)?;
    let address = listener.local_addr().context("failed to read the listening address")?;
    info!(engine = settings.name, %address, models = ?settings.models, capacity_rps = settings.pace.capacity_rps(), "listening");
    // Scripts wait for this line.
    println!("ready http://{address}");
    let engine = Rc::new(server::Engine::new(settings)?);
    tokio::select! {
        error = server::serve(listener, engine) => Err(error),
        signal = crate::net::stop_signal() => signal,
    }
}
