//! The views as tables for people.

use std::fmt;

use super::view::{EnginesView, ExplainView, SnapshotsView, StatusView, WeightsView};
use crate::control::{Freshness, Suspicion};
use crate::probe::EngineSignals;

/// Rows of cells in columns as wide as they need to be; numbers to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&h| h.to_owned()).collect()] }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let is_number = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit()) || cell == "-";
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let right = column > 0 && self.rows.get(1).is_some_and(|first| is_number(&first[column]));
                let width = width(column);
                let cell = if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(&cell);
                line.push_str("  ");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

impl fmt::Display for StatusView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ilb {}, up {:.0} s", self.version, self.uptime_s)?;
        match (self.generation, self.snapshot_age_s, self.objective_ms, self.status) {
            (Some(generation), Some(age), Some(objective), Some(status)) => writeln!(
                f,
                "snapshot  generation {}, {age:.0} s old, {}, expected mean latency {objective:.1} ms",
                generation,
                format!("{status:?}").to_lowercase()
            )?,
            _ => writeln!(f, "snapshot  none yet")?,
        }
        if let Some(control) = &self.control {
            writeln!(
                f,
                "control   {} plans, {} published, {} failed; last took {:.1} ms: {}",
                control.plans, control.published, control.failures, control.last_plan_ms, control.last_decision
            )?;
            if let Some(trial) = &control.trial {
                writeln!(f, "          {trial}")?;
            }
            if let Some(reason) = &control.stands_by {
                writeln!(f, "          stands by: {reason}")?;
            }
            for cluster in &control.clusters {
                let demand: Vec<String> = cluster.demand_rps.iter().map(|(class, rps)| format!("{class} {rps:.1}/s")).collect();
                let source = match cluster.freshness {
                    Freshness::Published => "as last published",
                    _ if cluster.measured => "measured",
                    _ => "configured",
                };
                writeln!(f, "          cluster {}: {} ({source})", cluster.cluster, demand.join(", "))?;
            }
            for engine in control.engines.iter().filter(|e| !e.ready) {
                writeln!(f, "          engine {} does not answer its health probe", engine.engine)?;
            }
            for loss in control.regions.iter().filter(|loss| loss.shortfall_rps > 0.0) {
                writeln!(f, "          {loss}")?;
            }
            for Suspicion { subject, finding } in &control.suspicions {
                writeln!(f, "suspect   {subject}: {finding}")?;
            }
        }
        if let Some(proxy) = &self.proxy {
            let listen: Vec<String> = proxy.listen.iter().map(ToString::to_string).collect();
            writeln!(f, "proxy     cluster {}, listening on {}, {}", proxy.cluster, listen.join(", "), proxy.io)?;
            let counted = |counts: &[(String, u64)]| {
                let counts: Vec<String> = counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
                if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
            };
            writeln!(f, "          requests: {}; retries: {}", counted(&proxy.outcomes), counted(&proxy.retries))?;
            if let Some(generation) = proxy.not_addressed {
                writeln!(f, "          generation {generation} is on trial in another cluster")?;
            }
            if !proxy.failover.is_empty() {
                writeln!(f, "          failover weights for {} in use: cannot be reached from here", proxy.failover.join(", "))?;
            }
            if proxy.plan_share < 1.0 {
                let share = proxy.plan_share * 100.0;
                writeln!(
                    f,
                    "          no controller heard of for long: {share:.0} % of its plan counts, the rest goes by capacity"
                )?;
            }
            if let Some(error) = &proxy.controller_error {
                writeln!(f, "          the controller does not answer, the last snapshot keeps serving: {error}")?;
            }
        }
        if let Some(kernel) = &self.kernel {
            let shown = |key: &str| kernel[key].as_str().map_or_else(|| kernel[key].to_string(), str::to_owned);
            writeln!(f, "kernel    service {}, generation {}; more: ilb kernel status", shown("service"), shown("generation"))?;
        }
        if let Some(error) = &self.kernel_error {
            writeln!(f, "kernel    off: {error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for EnginesView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            "ENGINE",
            "REGION",
            "ADDRESS",
            "READY",
            "CAPACITY/S",
            "PLANNED/S",
            "LOAD",
            "EXPECTED MS",
            "RUNNING",
            "WAITING",
            "KV",
            "IN FLIGHT",
            "PICKS",
            "FAILURES",
            "TTFT MS",
            "LATENCY MS",
        ]);
        for engine in &self.0 {
            let live = engine.live.as_ref();
            let said = |read: fn(&EngineSignals) -> Option<f64>| engine.signals.as_ref().and_then(read);
            let ready = match (engine.ready, live.map(|l| l.available)) {
                (Some(false), _) => "no".to_owned(),
                (_, Some(false)) => "out".to_owned(),
                (Some(true), _) | (_, Some(true)) => {
                    engine.ready_replicas.map_or("yes".to_owned(), |ready| format!("yes, {ready}"))
                }
                _ => "-".to_owned(),
            };
            table.rows.push(vec![
                engine.engine.clone(),
                engine.region.clone(),
                engine.address.to_string(),
                ready,
                format!("{:.1}", engine.capacity_rps),
                format!("{:.1}", engine.load_rps),
                format!("{:.1}%", engine.utilisation * 100.0),
                format!("{:.0}", engine.latency_ms),
                or_dash(said(|s| s.running)),
                or_dash(said(|s| s.waiting)),
                or_dash(said(|s| s.kv_usage_frac).map(|share| format!("{:.0}%", share * 100.0))),
                or_dash(live.map(|l| l.in_flight)),
                or_dash(live.map(|l| l.picks)),
                or_dash(live.map(|l| l.failures)),
                or_dash(live.and_then(|l| l.ttft_ms).map(|ms| format!("{ms:.0}"))),
                or_dash(live.and_then(|l| l.latency_ms).map(|ms| format!("{ms:.0}"))),
            ]);
        }
        table.fmt(f)
    }
}

impl fmt::Display for WeightsView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "generation {}", self.generation)?;
        if !self.failover.is_empty() {
            writeln!(f, "failover weights for {} in use", self.failover.join(", "))?;
        }
        let mut table = Table::new(&["CLUSTER", "CLASS", "ENGINE", "WEIGHT", "PLANNED/S", "PICKS", "ACHIEVED", "NOTE"]);
        for route in &self.routes {
            let picks: u64 = route.weights.iter().filter_map(|w| w.picks).sum();
            let mut note = if route.pinned { "set by hand".to_owned() } else { String::new() };
            if route.shed_frac > 0.0 {
                note = format!("{note}{}sheds {:.1}%", if note.is_empty() { "" } else { ", " }, route.shed_frac * 100.0);
            }
            for weight in &route.weights {
                table.rows.push(vec![
                    route.cluster.clone(),
                    route.class.clone(),
                    weight.engine.clone(),
                    format!("{:.4}", weight.weight),
                    format!("{:.1}", weight.weight * route.demand_rps * (1.0 - route.shed_frac)),
                    or_dash(weight.picks),
                    or_dash(weight.picks.filter(|_| picks > 0).map(|n| format!("{:.4}", n as f64 / picks as f64))),
                    note.clone(),
                ]);
            }
        }
        table.fmt(f)
    }
}

/// Changes of weights that a row has room for; `--json` has them all.
const MOVES_SHOWN: usize = 3;

impl fmt::Display for SnapshotsView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["GENERATION", "AGE", "STATUS", "EXPECTED MS", "MOVED", "WHAT MOVED", "WHY"]);
        for view in &self.0 {
            let moved = view.moved.as_ref();
            let change = |m: &crate::publish::history::Move| {
                let engine = m.engine.as_deref().unwrap_or("refused");
                format!("{}/{} {engine} {:.1}% -> {:.1}%", m.cluster, m.class, m.before * 100.0, m.after * 100.0)
            };
            let mut changes: Vec<String> = moved.iter().flat_map(|m| m.moves.iter().take(MOVES_SHOWN)).map(change).collect();
            let more = moved.map_or(0, |m| m.moves.len().saturating_sub(MOVES_SHOWN));
            if more > 0 {
                changes.push(format!("and {more} more"));
            }
            table.rows.push(vec![
                format!("{}{}", view.generation, if view.in_force { " *" } else { "" }),
                format!("{:.0}s", view.age_s),
                match view.status.map(|status| format!("{status:?}").to_lowercase()) {
                    None => "damaged".to_owned(),
                    Some(status) if view.audience.is_empty() => status,
                    Some(status) => format!("{status}, for {}", view.audience.join(", ")),
                },
                or_dash(view.objective_ms.map(|ms| format!("{ms:.1}"))),
                or_dash(moved.map(|m| format!("{:.1}%", m.moved_frac * 100.0))),
                changes.join(", "),
                view.reason.clone().or_else(|| view.error.clone()).unwrap_or_default(),
            ]);
        }
        table.fmt(f)
    }
}

impl fmt::Display for ExplainView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}, as it was planned\n\n{}", self.generation, self.explanation)
    }
}
