//! `ilb-bench sim`: the life of a fleet on a virtual clock, with the production control plane in
//! it.
//!
//! Time goes in ticks of a second. Requests are drawn from a seed, and engines answer by their
//! profiles. All decisions are made by production code: [`router_user::control::Measured`]
//! estimates demand from the reports of data planes, [`router_user::control::Planning`] plans,
//! [`router_user::control::conclude`] decides what to publish, and
//! [`router_user::dataplane::LocalOverrides`] takes over where a controller is silent. A checker
//! looks at every plan and every tick. No wall clock is read, so the same seed gives the same
//! decisions on every machine. The report has their digest.

mod checker;
mod control;
mod demand;
mod life;
mod plane;
mod policy;
mod report;
mod scenario;
mod types;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

pub use life::live;
pub use policy::Policy;
pub use report::{Life, Phase, Report};
pub use scenario::{Event, Kind, Lie, Scenario};

/// Live through an hour of a fleet: demand swings, engines and regions are lost, the controller
/// dies, telemetry lies
///
/// Example: ilb-bench sim --scenario hour --seed 3
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// One of bench/plans by name, or a file
    #[arg(long, default_value = "hour")]
    scenario: PathBuf,
    /// Another seed than the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Another duration than the scenario's, such as 10m
    #[arg(long, value_parser = humantime::parse_duration)]
    duration: Option<std::time::Duration>,
    /// Only these policies
    #[arg(long, value_delimiter = ',', value_enum)]
    policy: Vec<Policy>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let mut scenario = Scenario::find(&args.scenario)?;
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    if let Some(duration) = args.duration {
        scenario.duration_s = u32::try_from(duration.as_secs())?;
    }
    let policies = if args.policy.is_empty() { Policy::ALL.to_vec() } else { args.policy.clone() };
    let lives = policies.into_iter().map(|policy| live(&scenario, policy)).collect::<Result<Vec<Life>>>()?;
    let report = Report { scenario, lives };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}
