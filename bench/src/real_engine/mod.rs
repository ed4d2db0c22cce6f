//! Real engines: llama.cpp's own HTTP server on a small model with random weights, both installed
//! here.
//!
//! The text is nonsense; scheduling, batching, HTTP and event streams are those of a server that
//! people run. See bench/real-engine/README.md.

mod install;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;
use tracing::info;

use crate::net::Reserved;
use crate::process::{self, Child};
use crate::site::Site;
pub use install::{Installed, install};

/// The name the engines serve their model under.
pub const MODEL: &str = "river";

/// Install llama.cpp and a tiny model, start two engines and ilb in front of them, and leave them
/// running
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Where to install, and where logs and sockets go
    #[arg(long, value_name = "DIR", default_value = ".real-engine")]
    dir: PathBuf,
    /// Address of ilb
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Engines to start
    #[arg(long, default_value_t = 2)]
    engines: usize,
}

pub async fn run(args: Args) -> Result<()> {
    let installed = install(&args.dir)?;
    let folder = args.dir.canonicalize().with_context(|| format!("failed to find {}", args.dir.display()))?;
    let addresses = Reserved::new(args.engines + 2)?;
    let (admin, control, for_engines) = (addresses[0], addresses[1], &addresses[2..]);
    let engines: Vec<_> = for_engines.iter().enumerate().map(|(n, address)| (format!("llama-{n}"), *address)).collect();
    let mut children = Vec::new();
    for (name, address) in &engines {
        children.push(start(&installed, name, *address, &folder).await?);
        info!(engine = name, %address, "ready");
    }
    let site = Site { front: args.listen, admin, control, folder: &folder, engines: &engines, model: MODEL };
    children.push(front(&site).await?);
    println!("ready http://{}\n", args.listen);
    println!(
        "  curl -N http://{}/v1/chat/completions -d '{{\"model\":\"{MODEL}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Where does it run?\"}}],\"stream\":true}}'\n",
        args.listen
    );
    println!("ctrl-c stops ilb and its {} engines; their logs are in {}", engines.len(), args.dir.display());
    crate::net::stop_signal().await
}

/// Starts one engine and waits until its model is loaded. Its log goes to `folder`.
pub async fn start(installed: &Installed, name: &str, address: SocketAddr, folder: &Path) -> Result<Child> {
    let mut command: Command = process::logged(&installed.python, &folder.join(format!("{name}.log")))?;
    command.arg(&installed.server).arg(&installed.model).args([&address.port().to_string(), MODEL]);
    let mut child = Child::spawn(name, &mut command)?;
    child.answers(address, "/health", 200).await.with_context(|| log(folder, name))?;
    Ok(child)
}

/// Starts ilb on a site and waits until it serves.
pub async fn front(site: &Site<'_>) -> Result<Child> {
    let config = site.folder.join("ilb.toml");
    std::fs::write(&config, site.config()).with_context(|| format!("failed to write {}", config.display()))?;
    let mut command = process::logged(&process::sibling("ilb")?, &site.folder.join("ilb.log"))?;
    command.args(["run", "-c"]).arg(&config);
    let mut child = Child::spawn("ilb", &mut command)?;
    child.answers(site.admin, "/readyz", 200).await.with_context(|| log(site.folder, "ilb"))?;
    Ok(child)
}

/// The log of a program, for the message about its failure.
fn log(folder: &Path, name: &str) -> String {
    let path = folder.join(format!("{name}.log"));
    format!("{} holds:\n{}", path.display(), std::fs::read_to_string(&path).unwrap_or_default())
}
