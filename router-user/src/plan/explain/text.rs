//! An explanation in sentences, for somebody who has never seen one.

use std::fmt;

use crate::plan::explain::report::{ONE_MIX_EACH, gap_percent};
use crate::plan::explain::weights::{EngineExplanation, Explanation, Hold, PriceLimit, RouteExplanation, WeightReason};
use crate::plan::wording::rate;

const PREFACE: &str = "\
Every line below adds up what one more request would cost: its network round trip, its own time in the engine, the delay it causes
to the others there, and, where an engine is full, the worth of its last place. A plan is best when all engines that a cluster uses
for a class cost the same at that margin (the price) and every other engine costs more. That is the reason for each weight.
";

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{PREFACE}")?;
        let gap = gap_percent(self.gap_frac);
        write!(f, "{}: {:.1} ms mean latency", self.status, self.latency_ms)?;
        if self.latency_ms != self.objective_ms {
            write!(f, ", which costs {:.1} ms by the classes' weights, as does all below", self.objective_ms)?;
        }
        writeln!(f, "; no weights are better by more than {gap}{}", if self.is_mix_frozen { ONE_MIX_EACH } else { "" })?;
        for route in &self.routes {
            write!(f, "\n{route}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RouteExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {}, class {}: {} requests/s", self.cluster, self.class, rate(self.demand_rps))?;
        let price = format!("price {:.1} ms", self.price_ms);
        match self.limit {
            _ if self.shed_rps > 0.0 => {
                let why = match self.limit {
                    Some(PriceLimit::NoEngine) => "no engine that may serve them is ready",
                    Some(PriceLimit::Memory) => "the KV memory of every engine that may serve them is full",
                    _ => "every engine that may serve them is full",
                };
                writeln!(f, ", of which {} are shed, because {why}", rate(self.shed_rps))?;
            }
            Some(PriceLimit::DetourBudget) => {
                writeln!(f, ", {price}: one more would take the cluster further above its detour budget")?;
            }
            Some(PriceLimit::Memory) => {
                writeln!(f, "; one more would be shed, here or elsewhere, because the engines' KV memory is full")?;
            }
            Some(_) => writeln!(f, "; one more would be shed, here or elsewhere, because the engines are full")?,
            None if self.price_ms < 0.0 => {
                writeln!(f, ", {price}: each one is near enough to let the cluster make a detour elsewhere")?;
            }
            None => writeln!(f, ", {price}")?,
        }
        let width = self.engines.iter().map(|row| row.engine.len()).max().unwrap_or(0);
        self.engines.iter().try_for_each(|row| self.engine(f, row, width))
    }
}

impl RouteExplanation {
    fn engine(&self, f: &mut fmt::Formatter<'_>, row: &EngineExplanation, width: usize) -> fmt::Result {
        write!(f, "  {:width$}  ", row.engine)?;
        if row.weight > 0.0 {
            write!(f, "{:>6.2} %  {:>8.2}/s  ", row.weight * 100.0, row.rps)?;
        } else {
            write!(f, "{:>6} %  {:>8}    ", "0", "")?;
        }
        match (&row.reason, row.terms) {
            (WeightReason::NotEligible { why }, _) => writeln!(f, "not eligible: {why}")?,
            (WeightReason::Pinned, None) => writeln!(f, "set by an operator, but none of its replicas can take requests")?,
            (WeightReason::Withdrawn { order }, _) => writeln!(f, "withdrawn: {order}")?,
            (WeightReason::NotReady, _) | (_, None) => writeln!(f, "not ready: none of its replicas can take requests")?,
            (reason, Some(terms)) => {
                write!(f, "{:.1} network + {:.1} own time", terms.network_ms, terms.own_latency_ms)?;
                write!(f, " {} {:.1} delay to others", sign(terms.externality_ms), terms.externality_ms.abs())?;
                if terms.churn_ms > 0.0 {
                    write!(f, " + {:.1} for moving", terms.churn_ms)?;
                }
                if terms.memory_ms >= SHOWN_MS {
                    write!(f, " + {:.1} for its memory", terms.memory_ms)?;
                }
                if terms.detour_ms.abs() >= SHOWN_MS {
                    write!(f, " {} {:.1} for the detour", sign(terms.detour_ms), terms.detour_ms.abs())?;
                }
                if self.is_price_of_shed {
                    write!(f, "{}", if terms.capacity_ms > 0.0 { " + the price of a full engine" } else { "" })?;
                } else {
                    if terms.capacity_ms > 0.0 {
                        write!(f, " + {:.1} for its last place", terms.capacity_ms)?;
                    }
                    write!(f, " = {:.1} ms", terms.sum_ms())?;
                }
                writeln!(f, "{}", sentence(reason))?;
            }
        }
        let unit = if self.load_unit.is_empty() { "requests/s" } else { &self.load_unit };
        match row.held_by {
            Some(Hold::Capacity { at_rps }) => {
                writeln!(f, "  {:width$}  {:>20}  full: {at_rps:.1} {unit} is all it may be given", "", "")?;
            }
            Some(Hold::Memory { at_rps }) => {
                let text = format!("its memory is full: at {at_rps:.1} {unit} no more KV caches fit");
                writeln!(f, "  {:width$}  {:>20}  {text}", "", "")?;
            }
            Some(Hold::Knee { at_rps, more_ms }) => {
                let text = format!("held at {at_rps:.1} {unit}, a knee of its profile: beyond, each costs {more_ms:.1} ms more");
                writeln!(f, "  {:width$}  {:>20}  {text}", "", "")?;
            }
            Some(Hold::Current { at_rps, price_ms }) => {
                let text = format!("held at {at_rps:.1} requests/s, as before: moving costs {price_ms:.1} ms each");
                writeln!(f, "  {:width$}  {:>20}  {text}", "", "")?;
            }
            None => {}
        }
        if !row.shared_with.is_empty() {
            let others: Vec<String> = row
                .shared_with
                .iter()
                .take(SHARES_SHOWN)
                .map(|share| format!("{} {} {:.1}/s", share.cluster, share.class, share.rps))
                .collect();
            let more = row.shared_with.len().saturating_sub(SHARES_SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            writeln!(f, "  {:width$}  {:>20}  shared with {}{more}", "", "", others.join(", "))?;
        }
        Ok(())
    }
}

/// A term below this rounds to nothing.
const SHOWN_MS: f64 = 0.05;

/// Sharers of an engine that a text names; the JSON form has them all.
const SHARES_SHOWN: usize = 4;

fn sign(value: f64) -> char {
    if value < 0.0 { '-' } else { '+' }
}

fn sentence(reason: &WeightReason) -> String {
    match reason {
        WeightReason::AtPrice => ", the price: used".to_owned(),
        WeightReason::Hurried { by_ms } => format!(": {by_ms:.1} ms from the price, in a plan made without the solver"),
        WeightReason::Pinned => ": the weights were set by an operator".to_owned(),
        WeightReason::CheapestForFirst => ": no demand yet; a first request costs least here".to_owned(),
        WeightReason::AllShed => ": all is shed; what comes through all the same goes here".to_owned(),
        WeightReason::Dearer { by_ms } => format!(": dearer by {by_ms:.1} ms"),
        WeightReason::NotWorthMoving { saves_ms, price_ms } => {
            format!(": would save {saves_ms:.1} ms, and moving there costs {price_ms:.1} ms")
        }
        WeightReason::NotNeeded => ": as cheap as what is used, and not needed".to_owned(),
        WeightReason::Unresolved { by_ms } => format!(": cheaper by {by_ms:.1} ms, too little to be worth another round"),
        WeightReason::FilledByPins => ": pins of others take all of it".to_owned(),
        WeightReason::Sliver => ": cheaper, but for too small a share to be worth it".to_owned(),
        WeightReason::NotEligible { why } => format!(": not eligible: {why}"),
        WeightReason::NotReady => ": not ready".to_owned(),
        WeightReason::Withdrawn { order } => format!(": {order}"),
    }
}
