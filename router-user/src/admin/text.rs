//! The views as text for people.

use std::fmt;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};

use crate::admin::view::{EngineView, EnginesView, ExplainView, ProxyView, SnapshotsView, StatusView, WeightsView};
use crate::control::{Anomaly, ControlStatus, Freshness};
use crate::policy::outlier::Evidence;
use crate::probe::EngineSignals;
use crate::publish::history::Move;
use crate::publish::snapshot::OrderKind;

use CellAlignment::{Left, Right};

/// A table without lines: columns are as wide as they need to be, with two spaces between.
fn table(columns: &[(&str, CellAlignment)]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(head, _)| *head));
    for (at, &(_, alignment)) in columns.iter().enumerate() {
        let column = table.column_mut(at).expect("the header has made it");
        column.set_padding((0, 2)).set_cell_alignment(alignment);
    }
    table
}

fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

impl fmt::Display for StatusView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ilb {}, up {:.0} s, ready: {}", self.version, self.uptime_s, self.ready)?;
        match (self.generation, self.snapshot_age_s, self.objective_ms, self.status) {
            (Some(generation), Some(age), Some(objective), Some(status)) => writeln!(
                f,
                "snapshot  generation {generation}, {age:.0} s old, {}, expected mean latency {objective:.1} ms",
                format!("{status:?}").to_lowercase()
            )?,
            _ => writeln!(f, "snapshot  none yet")?,
        }
        if let Some(control) = &self.control {
            write_control(f, control)?;
        }
        if let Some(proxy) = &self.proxy {
            write_proxy(f, proxy)?;
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

fn write_control(f: &mut fmt::Formatter<'_>, control: &ControlStatus) -> fmt::Result {
    writeln!(
        f,
        "control   {} plans, {} published, {} failed; last took {:.1} ms: {}",
        control.plans, control.published, control.failures, control.last_plan_ms, control.last_decision
    )?;
    if let Some(trial) = &control.trial {
        writeln!(f, "          {trial}")?;
    }
    if let Some(reason) = &control.standby_reason {
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
    for engine in &control.engines {
        if let Some(order) = engine.order.as_ref().filter(|order| order.kind.withdraws()) {
            writeln!(f, "          engine {} {order}", engine.engine)?;
        }
    }
    for loss in control.regions.iter().filter(|loss| loss.shortfall_rps > 0.0) {
        writeln!(f, "          {loss}")?;
    }
    for Anomaly { subject, detail } in &control.anomalies {
        writeln!(f, "anomaly   {subject}: {detail}")?;
    }
    Ok(())
}

fn write_proxy(f: &mut fmt::Formatter<'_>, proxy: &ProxyView) -> fmt::Result {
    let listen: Vec<String> = proxy.listen.iter().map(ToString::to_string).collect();
    writeln!(f, "proxy     cluster {}, listening on {}, {}", proxy.cluster, listen.join(", "), proxy.io)?;
    let counted = |counts: &[(String, u64)]| {
        let counts: Vec<String> = counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    };
    writeln!(f, "          requests: {}; retries: {}", counted(&proxy.outcomes), counted(&proxy.retries))?;
    let waiting: usize = proxy.waiting.iter().sum();
    if waiting > 0 || !proxy.full_engines.is_empty() {
        let by_priority: Vec<String> = proxy.waiting.iter().map(ToString::to_string).collect();
        let full: Vec<String> = proxy.full_engines.iter().map(|(engine, limit)| format!("{engine} (takes {limit})")).collect();
        let full = if full.is_empty() { "none".to_owned() } else { full.join(", ") };
        writeln!(f, "          queue: {waiting} wait, by priority {}; full engines: {full}", by_priority.join("/"))?;
    }
    if let Some(generation) = proxy.not_addressed {
        writeln!(f, "          generation {generation} is on trial in another cluster")?;
    }
    if !proxy.failover.is_empty() {
        writeln!(f, "          failover weights for {} in use: cannot be reached from here", proxy.failover.join(", "))?;
    }
    if proxy.plan_share < 1.0 {
        let share = proxy.plan_share * 100.0;
        writeln!(f, "          no controller heard of for long: {share:.0} % of its plan counts, the rest goes by capacity")?;
    }
    if let Some(error) = &proxy.controller_error {
        writeln!(f, "          the controller does not answer, the last snapshot keeps serving: {error}")?;
    }
    Ok(())
}

const ENGINE_COLUMNS: [(&str, CellAlignment); 17] = [
    ("ENGINE", Left),
    ("REGION", Left),
    ("ADDRESS", Left),
    ("READY", Left),
    ("CAPACITY/S", Right),
    ("PLANNED/S", Right),
    ("LOAD", Right),
    ("EXPECTED MS", Right),
    ("RUNNING", Right),
    ("WAITING", Right),
    ("KV", Right),
    ("IN FLIGHT", Right),
    ("PICKS", Right),
    ("FAILURES", Right),
    ("TTFT MS", Right),
    ("ITL MS", Right),
    ("LATENCY MS", Right),
];

impl fmt::Display for EnginesView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = table(&ENGINE_COLUMNS);
        for engine in &self.0 {
            table.add_row(engine_row(engine));
        }
        writeln!(f, "{}", table.trim_fmt())?;
        let orders = self.0.iter().filter_map(|engine| Some((&engine.engine, engine.order.as_ref()?)));
        orders.into_iter().try_for_each(|(engine, order)| writeln!(f, "{engine} {order}"))
    }
}

fn engine_row(engine: &EngineView) -> [String; 17] {
    let live = engine.live.as_ref();
    let reported = |read: fn(&EngineSignals) -> Option<f64>| engine.signals.as_ref().and_then(read);
    let reduced = live.filter(|live| live.multiplier < 1.0);
    let ordered = engine.order.as_ref().map(|order| order.kind);
    let ready = match (engine.ready, reduced, live) {
        _ if ordered == Some(OrderKind::Drain) => "drained".to_owned(),
        _ if ordered == Some(OrderKind::Eject) => "ejected, operator".to_owned(),
        (Some(false), ..) => "no".to_owned(),
        (_, Some(live), _) => {
            let reason = live.reason.map_or("none", Evidence::name);
            let left = live.multiplier * 100.0;
            if live.available { format!("{left:.0}%, {reason}") } else { format!("ejected, {reason}") }
        }
        (Some(true), ..) | (_, _, Some(_)) => engine.ready_replicas.map_or("yes".to_owned(), |ready| format!("yes, {ready}")),
        _ => "-".to_owned(),
    };
    let ms = |ms: f64| format!("{ms:.0}");
    [
        engine.engine.clone(),
        engine.region.clone(),
        engine.address.to_string(),
        ready,
        format!("{:.1}", engine.capacity_rps),
        format!("{:.1}", engine.load_rps),
        format!("{:.1}%", engine.utilisation * 100.0),
        ms(engine.latency_ms),
        or_dash(reported(|s| s.running)),
        or_dash(reported(|s| s.waiting)),
        or_dash(reported(|s| s.kv_usage_frac).map(|share| format!("{:.0}%", share * 100.0))),
        or_dash(live.map(|l| l.in_flight)),
        or_dash(live.map(|l| l.picks)),
        or_dash(live.map(|l| l.failures)),
        or_dash(live.and_then(|l| l.ttft_ms).map(ms)),
        or_dash(live.and_then(|l| l.itl_ms).map(|ms| format!("{ms:.1}"))),
        or_dash(live.and_then(|l| l.latency_ms).map(ms)),
    ]
}

const WEIGHT_COLUMNS: [(&str, CellAlignment); 9] = [
    ("CLUSTER", Left),
    ("CLASS", Left),
    ("ENGINE", Left),
    ("WEIGHT", Right),
    ("PLANNED/S", Right),
    ("NOW/S", Right),
    ("PICKS", Right),
    ("ACHIEVED", Right),
    ("NOTE", Left),
];

impl fmt::Display for WeightsView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "generation {}", self.generation)?;
        if !self.failover.is_empty() {
            writeln!(f, "failover weights for {} in use", self.failover.join(", "))?;
        }
        let mut table = table(&WEIGHT_COLUMNS);
        for route in &self.routes {
            let picks: u64 = route.weights.iter().filter_map(|w| w.picks).sum();
            let mut notes = Vec::new();
            if route.pinned {
                notes.push("set by hand".to_owned());
            }
            if route.shed_frac > 0.0 {
                notes.push(format!("sheds {:.1}%", route.shed_frac * 100.0));
            }
            for weight in &route.weights {
                let share = weight.weight * (1.0 - route.shed_frac);
                table.add_row([
                    route.cluster.clone(),
                    route.class.clone(),
                    weight.engine.clone(),
                    format!("{:.4}", weight.weight),
                    format!("{:.1}", share * route.demand_rps),
                    or_dash(route.present_demand_rps.map(|rps| format!("{:.1}", share * rps))),
                    or_dash(weight.picks),
                    or_dash(weight.picks.filter(|_| picks > 0).map(|n| format!("{:.4}", n as f64 / picks as f64))),
                    notes.join(", "),
                ]);
            }
        }
        writeln!(f, "{}", table.trim_fmt())
    }
}

/// Most changes of weights in one row; `--json` has them all.
const MOVES_MOST: usize = 3;

const SNAPSHOT_COLUMNS: [(&str, CellAlignment); 7] = [
    ("GENERATION", Left),
    ("AGE", Right),
    ("STATUS", Left),
    ("EXPECTED MS", Right),
    ("MOVED", Right),
    ("CHANGES", Left),
    ("REASON", Left),
];

impl fmt::Display for SnapshotsView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = table(&SNAPSHOT_COLUMNS);
        for view in &self.0 {
            let moves = view.moved.as_ref().map_or(&[][..], |moved| &moved.moves);
            table.add_row([
                format!("{}{}", view.generation, if view.is_current { " *" } else { "" }),
                format!("{:.0}s", view.age_s),
                match view.status.map(|status| format!("{status:?}").to_lowercase()) {
                    None => "damaged".to_owned(),
                    Some(status) if view.target_clusters.is_empty() => status,
                    Some(status) => format!("{status}, for {}", view.target_clusters.join(", ")),
                },
                or_dash(view.objective_ms.map(|ms| format!("{ms:.1}"))),
                or_dash(view.moved.as_ref().map(|moved| format!("{:.1}%", moved.moved_frac * 100.0))),
                changes(moves),
                view.reason.clone().or_else(|| view.error.clone()).unwrap_or_default(),
            ]);
        }
        writeln!(f, "{}", table.trim_fmt())
    }
}

fn changes(moves: &[Move]) -> String {
    let change = |m: &Move| {
        let engine = m.engine.as_deref().unwrap_or("shed");
        format!("{}/{} {engine} {:.1}% -> {:.1}%", m.cluster, m.class, m.before * 100.0, m.after * 100.0)
    };
    let mut changes: Vec<String> = moves.iter().take(MOVES_MOST).map(change).collect();
    if moves.len() > MOVES_MOST {
        changes.push(format!("and {} more", moves.len() - MOVES_MOST));
    }
    changes.join(", ")
}

impl fmt::Display for ExplainView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}, as it was planned\n\n{}", self.generation, self.explanation)
    }
}
