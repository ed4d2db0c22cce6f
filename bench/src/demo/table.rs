//! The live table.

use std::io::Write;

use anyhow::{Context, Result};

use super::fleet::Fleet;
use super::view::{EngineState, View};
use super::window::{Sums, WINDOW_S, Weight};

/// Replaces what is on the terminal: home, each line cleared to its end, and the rest of the screen.
pub(super) fn redraw(text: &str) -> Result<()> {
    let text = text.replace('\n', "\x1b[K\n");
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H{text}\x1b[K\n\x1b[J").and_then(|()| out.flush()).context("failed to draw the table")
}

pub(super) fn text(view: &View, planned: &Fleet) -> String {
    let percent = view.scale * 100.0;
    let mut lines = vec![
        format!(
            "{} at {percent:.0} % of its rates and capacities, {:.0} s; generation {}",
            view.source,
            view.at.as_secs_f64(),
            view.planned.generation
        ),
        "Two fleets of the same engines, at the same time, with the same arrivals: \"planned\" follows ilb's plan, \"nearest\" sends every".to_owned(),
        format!("request to its nearest engine. Rates in requests/s, latencies in ms from arrival to last token, last {WINDOW_S:.0} s."),
        String::new(),
        format!(
            "{:<10} {:<8} {:>7}   {:<52} {:>9} {:>8} {:>7} {:>9} {:>9} {:>8} {:>7} {:>9}",
            "cluster", "class", "demand", "weights: published > achieved", "planned", "p99", "failed", "in flight", "nearest", "p99", "failed", "in flight"
        ),
    ];
    for (number, route) in view.routes.iter().enumerate() {
        let (planned, nearest) = (&view.planned.windows[number], &view.nearest.windows[number]);
        let weights: Vec<String> = planned.weights().iter().map(weight).collect();
        lines.push(format!(
            "{:<10} {:<8} {:>7.1}   {:<52} {} {:>8} {:>7} {:>9} {} {:>8} {:>7} {:>9}",
            route.cluster,
            route.class,
            route.demand_rps,
            weights.join("  "),
            mean(&planned.sums()),
            ms(planned.p99_ms),
            planned.sums().failed,
            planned.in_flight,
            mean(&nearest.sums()),
            ms(nearest.p99_ms),
            nearest.sums().failed,
            nearest.in_flight,
        ));
    }
    let (all, nearest) = (view.planned.all(), view.nearest.all());
    lines.push(format!(
        "{:<10} {:<8} {:>7.1}   {:<52} {} {:>8} {:>7} {:>9} {} {:>8} {:>7} {:>9}",
        "all",
        "",
        view.routes.iter().map(|route| route.demand_rps).sum::<f64>(),
        "",
        mean(&all),
        "",
        all.failed,
        view.planned.windows.iter().map(|w| w.in_flight).sum::<usize>(),
        mean(&nearest),
        "",
        nearest.failed,
        view.nearest.windows.iter().map(|w| w.in_flight).sum::<usize>(),
    ));
    lines.push(String::new());
    lines.push(format!(
        "{:<10} {:>8}   {:>8} {:>6} {:>8} {:>8}   {:>8} {:>6} {:>8} {:>8}",
        "engine", "capacity", "planned", "used", "running", "waiting", "nearest", "used", "running", "waiting"
    ));
    for (number, engine) in view.engines.iter().enumerate() {
        let state = |state: &Option<EngineState>| match state {
            Some(EngineState { load_rps, running, waiting }) => {
                format!("{load_rps:>8.1} {:>4.0} % {running:>8.0} {waiting:>8.0}", load_rps / engine.capacity_rps * 100.0)
            }
            None => format!("{:>8} {:>6} {:>8} {:>8}", "gone", "", "", ""),
        };
        lines.push(format!(
            "{:<10} {:>8.1}   {}   {}",
            engine.name,
            engine.capacity_rps,
            state(&view.planned.engines[number]),
            state(&view.nearest.engines[number])
        ));
    }
    lines.push(String::new());
    lines.push(
        "A queue that only grows has no mean: nearest's is that of the requests that ended, the waiting ones will be worse."
            .to_owned(),
    );
    let fronts: Vec<String> = view.routes.iter().map(|route| route.cluster.clone()).collect();
    let mut names = fronts;
    names.dedup();
    let proxies = names.iter().zip(&planned.proxies).map(|(name, (address, _))| format!("{name} http://{address}"));
    lines.push(format!("proxies: {}", proxies.collect::<Vec<_>>().join("   ")));
    lines.push(format!("look closer: ilb weights --socket {}   ctrl-c stops everything", planned.socket.display()));
    lines.join("\n")
}

fn weight(weight: &Weight) -> String {
    format!("{} {:.3} > {:.3}", weight.engine, weight.published, weight.achieved)
}

fn mean(sums: &Sums) -> String {
    format!("{:>9}", ms(sums.mean_ms))
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"))
}
