//! The live table.

use std::io::Write;

use anyhow::{Context, Result};

use super::INTERVAL;
use super::fleet::Fleet;
use super::view::{EngineState, View};
use super::window::{Sums, WINDOW_S, Weight};

/// Redraws the terminal: home, each line cleared to its end, then the rest of the screen. Lines are
/// cut at the edge, not wrapped.
pub(super) fn redraw(text: &str) -> Result<()> {
    let text = text.replace('\n', "\x1b[K\n");
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H\x1b[?7l{text}\x1b[K\n\x1b[J\x1b[?7h").and_then(|()| out.flush()).context("failed to draw the table")
}

pub(super) fn text(view: &View, planned: &Fleet) -> String {
    let mut lines = vec![
        format!(
            "{} at {:.0} % of its rates and capacities   {:.0} s   generation {}   the plan expects a mean of {} ms",
            view.source,
            view.scale * 100.0,
            view.at.as_secs_f64(),
            view.planned.generation,
            ms(view.planned.objective_ms)
        ),
        "Two fleets of the same engines, at the same time, with the same arrivals: \"planned\" follows ilb's plan, \"nearest\" sends".to_owned(),
        "every request to its nearest engine. Rates in requests/s; latencies in ms, from arrival to last token:".to_owned(),
        format!("means of the last {WINDOW_S:.0} s, p99 of the last {:.0} s.", INTERVAL.as_secs_f64()),
        String::new(),
        format!(
            "{:<8} {:<6} {:>7}  {:<42} {:>8} {:>7} {:>8} {:>7}  failed: planned/nearest",
            "cluster", "class", "demand", "weights in %: published/achieved", "planned", "p99", "nearest", "p99"
        ),
    ];
    for (number, route) in view.routes.iter().enumerate() {
        let (planned, nearest) = (&view.planned.windows[number], &view.nearest.windows[number]);
        let weights: Vec<String> = planned.weights().iter().filter(|w| is_shown(w)).map(weight).collect();
        let means = [planned.sums(), nearest.sums()];
        let p99s = [planned.p99_ms, nearest.p99_ms];
        lines.push(row([&route.cluster, &route.class], route.demand_rps, &weights.join("  "), means, p99s));
    }
    let demand_rps = view.routes.iter().map(|route| route.demand_rps).sum();
    lines.push(row(["all", ""], demand_rps, "", [view.planned.all(), view.nearest.all()], [None, None]));
    lines.push(String::new());
    let heads = ["load", "used", "running", "waiting"].map(|head| format!("{head:>8}")).concat();
    lines.push(format!("{:<8} {:>8}   planned:{heads}   nearest:{heads}", "engine", "capacity"));
    for (number, engine) in view.engines.iter().enumerate() {
        let state = |state: &Option<EngineState>| match state {
            Some(EngineState { load_rps, running, waiting }) => {
                format!("{load_rps:>8.1}{:>6.0} %{running:>8.0}{waiting:>8.0}", load_rps / engine.capacity_rps * 100.0)
            }
            None => format!("{:>8}{:>24}", "gone", ""),
        };
        let (planned, nearest) = (state(&view.planned.engines[number]), state(&view.nearest.engines[number]));
        lines.push(format!("{:<8} {:>8.1}           {planned}           {nearest}", engine.name, engine.capacity_rps));
    }
    lines.push(String::new());
    lines.push(
        "A request that still waits is in no mean: where a queue grows, latency is worse than shown, and growing.".to_owned(),
    );
    let mut clusters: Vec<&str> = view.routes.iter().map(|route| route.cluster.as_str()).collect();
    clusters.dedup();
    let proxies = clusters.iter().zip(&planned.proxies).map(|(name, (address, _))| format!("{name} http://{address}"));
    lines.push(format!("proxies: {}", proxies.collect::<Vec<_>>().join("   ")));
    lines.push(format!("look closer: ilb weights --socket {}   ctrl-c stops everything", planned.socket.display()));
    lines.join("\n")
}

/// One line; `means` and `p99_ms` are planned, nearest.
fn row(names: [&str; 2], demand_rps: f64, weights: &str, means: [Sums; 2], p99_ms: [Option<f64>; 2]) -> String {
    let ([cluster, class], [planned, nearest]) = (names, means);
    format!(
        "{cluster:<8} {class:<6} {demand_rps:>7.1}  {weights:<42} {:>8} {:>7} {:>8} {:>7}  {}/{}",
        ms(planned.mean_ms),
        ms(p99_ms[0]),
        ms(nearest.mean_ms),
        ms(p99_ms[1]),
        planned.failed,
        nearest.failed
    )
}

/// Weights that would be printed as zero are left out.
fn is_shown(weight: &Weight) -> bool {
    weight.published.max(weight.achieved) >= 0.0005
}

fn weight(weight: &Weight) -> String {
    format!("{} {:.1}/{:.1}", weight.engine, weight.published * 100.0, weight.achieved * 100.0)
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"))
}
