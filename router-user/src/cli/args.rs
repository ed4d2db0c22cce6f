//! Arguments of `ilb`: nouns show, verbs change.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use router_user::io::IoChoice;
use router_user::plan::decide::whatif::Change;
use router_user::publish::Generation;

use super::profile_args::ProfileCommand;
use super::socket::Socket;

/// The inference load balancer: spreads LLM requests over engines in many regions by weights that
/// minimise end-to-end latency.
///
/// A control plane computes the weights and explains each of them. Data planes route every request
/// by the last published snapshot; no request ever waits for the control plane.
///
/// First steps: `ilb check FILE` checks a configuration, `ilb solve FILE` plans it offline, `ilb
/// explain FILE` explains the plan, and `ilb run -c FILE` serves it. Logs go to stderr; ILB_LOG
/// sets their level (error, warn, info, debug, or MODULE=LEVEL).
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.
#[derive(Debug, Parser)]
#[command(name = "ilb", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run control plane, data plane and (if enabled) kernel plane in one process.
    Run(Serve),
    /// Run the data plane of one cluster; it fetches snapshots from the controller and keeps
    /// serving without it.
    Proxy(Serve),
    /// Run the control plane alone.
    Control(Control),
    /// Check a configuration: print it with every default, or print every mistake with its place.
    Check {
        /// Configuration file.
        file: PathBuf,
    },
    /// Plan a configuration offline and print weights, loads and prices.
    Solve {
        /// Configuration file.
        file: PathBuf,
        /// Change an input, and print both plans and their differences; may be repeated.
        ///
        /// Forms: engine.e2.replicas=0, cluster.b.demand_rps.chat=+20%, rtt_ms.r1.r2=80,
        /// control.headroom=0.1; a value may be a number, or relative as +N, -N, +N% or -N%.
        #[arg(long, value_name = "KEY=VALUE")]
        what_if: Vec<Change>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Explain each weight and each zero: its marginal cost against the price of its (cluster,
    /// class), in ms.
    ///
    /// With a FILE, plan and explain that configuration; without one, ask a running ilb for its
    /// current plan.
    Explain(Explain),
    /// Make a latency profile from measurements.
    Profile {
        #[command(subcommand)]
        command: ProfileCommand,
    },
    /// Show the state of a running ilb: roles, generation and age of its snapshot, outcomes of
    /// requests.
    Status(Ask),
    /// Show the engines a running ilb knows, with their planned and live load, or order something
    /// about one.
    Engines(Engines),
    /// Show the active weights, or set them by hand.
    Weights(Weights),
    /// Show the snapshots that a running ilb keeps: age, quality, reason, and the weights that each
    /// moved.
    Snapshots(Ask),
    /// Publish an old generation again, under a new number; its weights hold until `ilb weights
    /// unpin`, or for --ttl.
    Rollback {
        /// The generation as `ilb snapshots` shows it, such as 17 or 3.17.
        #[arg(value_parser = generation)]
        generation: Generation,
        /// Time until the optimiser takes over again, such as 90s, 10m or 2h; without it, never.
        #[arg(long, value_parser = humantime::parse_duration)]
        ttl: Option<Duration>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Show the kernel plane, or remove it.
    Kernel {
        #[command(subcommand)]
        command: KernelCommand,
    },
    /// Print a page of docs/ that is made from the code.
    #[command(hide = true)]
    Docs {
        /// Name of the page, without its ending; without it, the names of all pages.
        page: Option<String>,
    },
}

/// Arguments of `ilb run` and `ilb proxy`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Configuration file.
    #[arg(short, long, default_value = "ilb.toml")]
    pub(crate) config: PathBuf,
    /// Cluster of this data plane; required if the file has several.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Address for clients, instead of proxy.listen; may be repeated.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Driver of socket IO: io_uring where the kernel allows it (auto), or one of the two by name.
    #[arg(long, value_name = "auto|uring|epoll", default_value = "auto")]
    pub(crate) io: IoChoice,
    /// Reach an engine by another address than the published one; may be repeated.
    #[arg(long, value_name = "ENGINE=IP:PORT", value_parser = via)]
    pub(crate) via: Vec<(String, SocketAddr)>,
    #[command(flatten)]
    pub(crate) admin: Admin,
}

#[derive(Debug, Args)]
pub(crate) struct Control {
    /// Configuration file.
    #[arg(short, long, default_value = "ilb.toml")]
    pub(crate) config: PathBuf,
    /// Address for data planes, instead of control.listen.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) admin: Admin,
}

#[derive(Debug, Args)]
pub(crate) struct Admin {
    /// Address of /metrics, /healthz and /readyz, instead of admin.listen.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Unix socket for commands, instead of admin.socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Configuration file; without it, a running ilb is asked.
    pub(crate) file: Option<PathBuf>,
    /// Only this cluster.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Only this class.
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// Only this engine.
    #[arg(long)]
    pub(crate) engine: Option<String>,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// How to ask a running ilb.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Weights {
    #[command(subcommand)]
    pub(crate) command: Option<WeightsCommand>,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WeightsCommand {
    /// Set the weights of one (cluster, class) by hand; plans keep them until they expire or are
    /// removed.
    ///
    /// Example: ilb weights set --cluster b --class chat e2=0.5 e3=0.5 --ttl 10m
    Set {
        /// Cluster whose requests follow the weights.
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// Class whose requests follow the weights.
        #[arg(long, value_name = "NAME")]
        class: String,
        /// Engine and weight; the weights must sum to 1.
        #[arg(required = true, value_name = "ENGINE=WEIGHT", value_parser = weight)]
        weights: Vec<(String, f64)>,
        /// Time until the optimiser takes over again, such as 90s, 10m or 2h; without it, never.
        #[arg(long, value_parser = humantime::parse_duration)]
        ttl: Option<Duration>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Remove weights set by hand: those of one cluster, of one class, or all.
    Unpin {
        /// Only weights of this cluster.
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
        /// Only weights of this class.
        #[arg(long, value_name = "NAME")]
        class: Option<String>,
        #[command(flatten)]
        socket: Socket,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Engines {
    #[command(subcommand)]
    pub(crate) command: Option<EnginesCommand>,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EnginesCommand {
    /// Send an engine no new requests while another one can take them; what it works on and holds
    /// stays reachable.
    ///
    /// Example: ilb engines drain e1 --ttl 30m --reason "new driver"
    Drain(Withdraw),
    /// End a drain; the engine's share grows back.
    Undrain(Readmit),
    /// Send an engine no requests at all from now on, whatever its health says; streams that run go
    /// on.
    ///
    /// Not even the last engine of a class is excepted.
    Eject(Withdraw),
    /// End an eject, and let data planes forget what they hold against the engine; its share grows
    /// back.
    Restore(Readmit),
}

/// Arguments of an order that withdraws an engine.
#[derive(Debug, Args)]
pub(crate) struct Withdraw {
    /// Name of the engine.
    pub(crate) engine: String,
    /// Time until the order expires, such as 90s, 10m or 2h; without it, it lasts until it is taken
    /// back.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Do it also if demand is left without capacity.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) note: Note,
}

/// Arguments of an order that takes another one back.
#[derive(Debug, Args)]
pub(crate) struct Readmit {
    /// Name of the engine.
    pub(crate) engine: String,
    #[command(flatten)]
    pub(crate) note: Note,
}

/// What is kept beside an order.
#[derive(Debug, Args)]
pub(crate) struct Note {
    /// Why, for others who look at the engines.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Who orders it.
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true, default_value = "unknown")]
    pub(crate) by: String,
    #[command(flatten)]
    pub(crate) socket: Socket,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Show the programs, engines and counters of this kernel, with or without a running ilb.
    Status {
        /// Folder in which maps and links are pinned.
        #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf/ilb")]
        pin_dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove every program, map and link; connections then go where they would without ilb.
    Detach {
        /// Folder in which maps and links are pinned.
        #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf/ilb")]
        pin_dir: PathBuf,
    },
}

fn via(text: &str) -> Result<(String, SocketAddr), String> {
    let (engine, address) = text.split_once('=').ok_or("wanted ENGINE=IP:PORT")?;
    Ok((engine.to_owned(), address.parse().map_err(|_| format!("{address:?} is no IP:PORT"))?))
}

fn generation(text: &str) -> Result<Generation, String> {
    text.parse()
}

/// Reads `ENGINE=WEIGHT`. What only the whole list shows (the sum, an engine given twice) the
/// controller checks.
fn weight(text: &str) -> Result<(String, f64), String> {
    let (engine, weight) = text.split_once('=').ok_or("wanted ENGINE=WEIGHT, such as e2=0.5")?;
    if engine.is_empty() {
        return Err("the name of the engine is missing; wanted ENGINE=WEIGHT, such as e2=0.5".to_owned());
    }
    let number = weight.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number
        .map(|number| (engine.to_owned(), number))
        .ok_or_else(|| format!("weight {weight:?} of engine {engine:?}; wanted a number from 0 to 1, such as {engine}=0.5"))
}
