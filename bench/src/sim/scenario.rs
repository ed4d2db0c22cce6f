//! What happens in a simulated life: a file of `bench/plans`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The scenarios that come with the tool.
const NAMED: [(&str, &str); 2] =
    [("hour", include_str!("../../plans/hour.toml")), ("outage", include_str!("../../plans/outage.toml"))];

/// Longest life: a day.
const MOST_SECONDS: u32 = 86_400;

/// A life: the fleet, its demand, what happens to it, and what must hold all the same. Times count
/// from its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// By which it is replayed: a name, or the file's path.
    #[serde(default)]
    pub name: String,
    pub seed: u64,
    pub duration_s: u32,
    pub fleet: FleetShape,
    pub demand: DemandShape,
    pub expect: Expect,
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

/// A synthetic fleet, as `ilb-bench plan` makes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetShape {
    pub clusters: u16,
    pub engines: u16,
    pub classes: u16,
    /// Mean demand as a share of capacity.
    pub load_frac: f64,
    /// Share of every capacity that plans keep free.
    pub headroom_frac: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DemandShape {
    /// How far demand swings around its mean in the course of a day, each region at its own hour; a
    /// share.
    pub swing_frac: f64,
    /// How long a day is: an hour has to see one.
    pub day_s: u32,
}

/// What a life is held to. A run that breaks any of it fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Longest time that an engine may get more than it can serve, while there is a controller that
    /// is told the truth, and what is asked can be served at all.
    pub overload_s: u32,
    /// Share of all requests that may be refused for other reasons than the plan: nothing there to
    /// serve them, or all full.
    pub refused_frac: f64,
    /// Share of seconds in which something may be published, at most.
    pub published_frac: f64,
}

/// Something that happens at `at_s`, and is over `for_s` later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub at_s: u32,
    pub for_s: u32,
    #[serde(flatten)]
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
    /// An engine refuses every connection.
    EngineDown { engine: String },
    /// All engines of a region do.
    RegionLost { region: String },
    /// Nobody plans, takes reports or answers data planes; a new controller knows only the last
    /// snapshot.
    ControllerDown {},
    /// Demand is multiplied, of one cluster or everywhere.
    Demand { cluster: Option<String>, factor: f64 },
    /// What a cluster's data plane reports is not what arrives.
    Telemetry { cluster: String, lie: Lie },
    /// Probes of a region's engines get no answer, though the engines serve.
    ProbesSilent { region: String },
}

/// What a data plane reports instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    Zeros,
    /// What it reported last before.
    Frozen,
    Tenfold,
}

impl Scenario {
    /// The scenario of that name, or in that file.
    ///
    /// Errors: there is none, or it makes no sense.
    pub fn find(name: &Path) -> Result<Self> {
        let shown = name.display().to_string();
        let named = NAMED.iter().find(|(known, _)| *known == shown).map(|(_, source)| (*source).to_owned());
        let source = match named {
            Some(source) => source,
            None => std::fs::read_to_string(name).with_context(|| {
                let known: Vec<&str> = NAMED.iter().map(|(known, _)| *known).collect();
                format!("read scenario {shown:?}; wanted a file, or one of {}", known.join(", "))
            })?,
        };
        Self::parse(&shown, &source)
    }

    /// Errors: the text is no scenario, or one that makes no sense.
    pub fn parse(name: &str, source: &str) -> Result<Self> {
        let scenario: Self = toml::from_str(source).with_context(|| format!("read scenario {name:?}"))?;
        let scenario = Self { name: name.to_owned(), ..scenario };
        scenario.validate().with_context(|| format!("scenario {name:?}"))?;
        Ok(scenario)
    }

    fn validate(&self) -> Result<()> {
        let FleetShape { clusters, engines, classes, load_frac, headroom_frac } = self.fleet;
        ensure!((1..=MOST_SECONDS).contains(&self.duration_s), "duration_s is {}, wanted 1 to {MOST_SECONDS}", self.duration_s);
        ensure!(
            clusters > 0 && classes > 0 && engines >= classes,
            "{clusters} clusters, {engines} engines for {classes} classes"
        );
        ensure!(load_frac > 0.0 && load_frac <= 2.0, "load_frac is {load_frac}, wanted above 0, at most 2");
        ensure!((0.0..1.0).contains(&headroom_frac), "headroom_frac is {headroom_frac}, wanted 0 to below 1");
        ensure!((0.0..1.0).contains(&self.demand.swing_frac), "swing_frac is {}, wanted 0 to below 1", self.demand.swing_frac);
        ensure!(self.demand.day_s > 0, "day_s is 0");
        for event in &self.events {
            if let Kind::Demand { factor, .. } = event.kind
                && !(factor.is_finite() && factor >= 0.0)
            {
                bail!("factor of demand is {factor}, wanted a finite number >= 0");
            }
        }
        Ok(())
    }

    /// What is going on at a second.
    pub fn active(&self, at_s: u32) -> impl Iterator<Item = &Kind> {
        let is_on = move |event: &&Event| (event.at_s..event.at_s.saturating_add(event.for_s)).contains(&at_s);
        self.events.iter().filter(is_on).map(|event| &event.kind)
    }
}

impl Kind {
    /// In a few words, for a table.
    pub fn name(&self) -> String {
        match self {
            Self::EngineDown { engine } => format!("{engine} down"),
            Self::RegionLost { region } => format!("{region} lost"),
            Self::ControllerDown {} => "controller down".to_owned(),
            Self::Demand { cluster, factor } => format!("demand of {} x {factor}", cluster.as_deref().unwrap_or("all")),
            Self::Telemetry { cluster, lie: Lie::Zeros } => format!("{cluster} reports zeros"),
            Self::Telemetry { cluster, lie: Lie::Frozen } => format!("{cluster} reports the past"),
            Self::Telemetry { cluster, lie: Lie::Tenfold } => format!("{cluster} reports tenfold"),
            Self::ProbesSilent { region } => format!("probes of {region} silent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_scenarios_are_scenarios_and_nonsense_is_refused() {
        for (name, source) in NAMED {
            let scenario = Scenario::find(Path::new(name)).expect(name);
            assert!(scenario.events.iter().all(|event| event.at_s + event.for_s <= scenario.duration_s), "{name}");
            let wrong = source.replacen("seed = ", "sede = ", 1);
            let error = format!("{:#}", Scenario::parse(name, &wrong).expect_err("an unknown key"));
            assert!(error.contains("sede"), "{error}");
            let wrong = source.replacen("load_frac = 0", "load_frac = -0", 1);
            let error = format!("{:#}", Scenario::parse(name, &wrong).expect_err("a load below 0"));
            assert!(error.contains("load_frac is -0"), "{error}");
        }
        let error = format!("{:#}", Scenario::find(Path::new("century")).expect_err("none"));
        assert!(error.contains("one of hour, outage"), "{error}");
    }
}
