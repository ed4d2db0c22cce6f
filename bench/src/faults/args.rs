//! The command line, and the cases that it asks for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use super::front::{Front, Io, RivalKind};
use super::misbehaviour::Misbehaviour;
use super::scenario::engines;

/// What clients notice of engines that misbehave, of overload and of wrong numbers
///
/// Engines, ilb and the other proxies are real processes; engines generate nothing and keep time.
/// Example: ilb-bench faults engines --fault 500 --engines 2 --load 22 --rival haproxy
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// What to try [default: engines]
    #[arg(value_enum, value_name = "SCENARIO")]
    pub(super) scenarios: Vec<Scenario>,
    /// For engines: how one of them misbehaves; repeat for several [default: all]
    #[arg(long = "fault", value_enum, value_name = "NAME")]
    pub(super) faults: Vec<Misbehaviour>,
    /// For engines: how many there are, one of them bad; repeat for several [default: 2 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    pub(super) engines: Vec<u8>,
    /// For engines: offered load in percent of the fleet's capacity; repeat for several [default: 1
    /// 22 70]
    #[arg(long = "load", value_name = "PERCENT", value_parser = percent)]
    pub(super) loads: Vec<f64>,
    /// IO driver of ilb; repeat for several [default: uring epoll]
    #[arg(long, value_enum)]
    pub(super) io: Vec<Io>,
    /// Another proxy to try beside ilb; repeat for several
    #[arg(long = "rival", value_enum, value_name = "NAME")]
    pub(super) rivals: Vec<RivalKind>,
    /// Where the rivals from PyPI are installed, each in a virtual environment of its name
    /// [default: ilb/rivals in the cache folder]
    #[arg(long, value_name = "DIR")]
    pub(super) rival_dir: Option<PathBuf>,
    /// Another build of ilb to try in place of the one beside this program
    #[arg(long, value_name = "PROGRAM")]
    pub(super) ilb: Option<PathBuf>,
    /// Runs of each case, with arrivals of seeds 1 to N; the table shows medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: u64,
    /// Runs at a time; each takes up to a quarter of a core
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) parallel: u8,
    /// Length of the disturbance in the other scenarios [default: each its own]
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub(super) time: Option<Duration>,
    /// A handful of cases with one seed, in less than two minutes
    #[arg(long)]
    pub(super) quick: bool,
    /// Print a line of JSON for each case as soon as it is done
    #[arg(long)]
    pub(super) json: bool,
    /// End with an error when a limit is missed
    #[arg(long)]
    pub(super) check: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Scenario {
    /// One of two or three engines misbehaves for 20 s
    Engines,
    /// Healthy engines that look odd, for an hour: no engine may be ejected
    Alarms,
    /// Half of the engines fail at 95 % load: what retries add, what is still served
    Storm,
    /// One user sends 15 times the fleet's capacity: what the others notice
    Flood,
    /// One affinity key is all traffic: how it is spread, and that a session alone stays
    HotKey,
    /// Three times the fleet's capacity for five minutes, in four priorities
    Overload,
    /// A small model beside a flooded one on the same engines
    Beside,
    /// A request that kills the engines that take it
    Poison,
    /// An engine dies with 300 requests on it: how many are sent again
    Cut,
    /// The configured capacity is a third of the true one
    Guess,
    /// One cluster reports ten times its demand
    Tenfold,
}

/// One case of one scenario.
#[derive(Clone, Copy, Debug)]
pub(super) enum Case {
    Engines(engines::Case),
    /// A scenario of one case.
    Whole(Scenario),
}

impl Case {
    pub(super) fn scenario(&self) -> Scenario {
        match self {
            Self::Engines(_) => Scenario::Engines,
            Self::Whole(scenario) => *scenario,
        }
    }

    /// The case among those of its scenario.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Whole(_) => String::new(),
            Self::Engines(case) => {
                format!("{}, 1 of {}, {} %", case.misbehaviour.name(), case.engines, case.load_percent)
            }
        }
    }
}

impl Scenario {
    /// False where the verdict comes from ilb's own metrics or configuration.
    pub(super) fn is_for_rivals(self) -> bool {
        !matches!(self, Self::Alarms | Self::Guess | Self::Tenfold)
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Loads at which engines misbehave by default, in percent of the fleet's capacity: nearly idle,
/// usual, and more than the sound engines of two can carry.
const LOADS: [f64; 3] = [1.0, 22.0, 70.0];

/// What `--quick` tries: a failure at once, one without an answer, and one that hangs.
const QUICK: [Misbehaviour; 3] = [Misbehaviour::Error, Misbehaviour::Close, Misbehaviour::Stop];

impl Args {
    pub(super) fn cases(&self) -> Vec<Case> {
        let scenarios = if self.scenarios.is_empty() { vec![Scenario::Engines] } else { self.scenarios.clone() };
        let cases = |scenario: &Scenario| match scenario {
            Scenario::Engines => self.engine_cases().into_iter().map(Case::Engines).collect::<Vec<_>>(),
            whole => vec![Case::Whole(*whole)],
        };
        scenarios.iter().flat_map(cases).collect()
    }

    fn engine_cases(&self) -> Vec<engines::Case> {
        let all = if self.quick { QUICK.to_vec() } else { Misbehaviour::value_variants().to_vec() };
        let faults = if self.faults.is_empty() { all } else { self.faults.clone() };
        let sizes = match (self.engines.is_empty(), self.quick) {
            (false, _) => self.engines.clone(),
            (true, true) => vec![3],
            (true, false) => vec![2, 3],
        };
        let loads = match (self.loads.is_empty(), self.quick) {
            (false, _) => self.loads.clone(),
            (true, true) => vec![22.0],
            (true, false) => LOADS.to_vec(),
        };
        let mut cases = Vec::new();
        for &misbehaviour in &faults {
            for &engines in &sizes {
                let case = |&load_percent| engines::Case { misbehaviour, engines: engines.into(), load_percent };
                cases.extend(loads.iter().map(case));
            }
        }
        cases
    }

    pub(super) fn seeds(&self) -> u64 {
        if self.quick { 1 } else { self.seeds }
    }

    /// Runs at a time: all cases of `--quick` with both drivers fit one batch.
    pub(super) fn parallel(&self) -> usize {
        if self.quick { 6 } else { self.parallel.into() }
    }

    /// The proxies to try, ilb first.
    ///
    /// Errors: there is no ilb. A rival that is not installed is left out; a line says so.
    pub(super) fn fronts(&self) -> anyhow::Result<Vec<Front>> {
        let drivers = if self.io.is_empty() { vec![Io::Uring, Io::Epoll] } else { self.io.clone() };
        let mut fronts = Vec::new();
        for io in drivers {
            fronts.push(Front::ilb(io, self.ilb.as_deref())?);
        }
        let folder = self.rival_dir.clone().unwrap_or_else(rival_folder);
        for rival in &self.rivals {
            match Front::rival(*rival, &folder) {
                Ok(front) => fronts.push(front),
                Err(error) => eprintln!("left out: {error:#}"),
            }
        }
        Ok(fronts)
    }
}

/// `ilb/rivals` in the user's cache folder.
fn rival_folder() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("ilb/rivals")
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent <= 1000.0);
    percent.ok_or_else(|| format!("the load is {text:?}; wanted percent, above 0 and at most 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_all_combinations_and_quick_is_a_handful() {
        let cases = |words: &[&str]| Args::parse_from(words).cases();
        let all = Misbehaviour::value_variants().len();
        assert_eq!(cases(&["faults"]).len(), all * 2 * 3);
        assert_eq!(cases(&["faults", "--fault", "500", "--fault", "stop", "--engines", "2", "--load", "5"]).len(), 2);
        assert_eq!(cases(&["faults", "--quick"]).len(), 3);
        let labels: Vec<String> = cases(&["faults", "--fault", "500", "--load", "22"]).iter().map(Case::label).collect();
        assert_eq!(labels, ["500, 1 of 2, 22 %", "500, 1 of 3, 22 %"]);
    }

    #[test]
    fn loads_are_percent() {
        assert_eq!(percent("22"), Ok(22.0));
        for text in ["0", "-1", "x", "nan", "1001"] {
            assert!(percent(text).expect_err(text).contains("wanted percent"), "{text}");
        }
    }
}
