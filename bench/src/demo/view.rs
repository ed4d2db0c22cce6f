//! The state of both fleets, for the table.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use router_user::config::Config;
use router_user::model::{ClassId, ClusterId};
use router_user::publish::snapshot::Snapshot;
use serde::Serialize;
use tokio::time::timeout;

use super::fleet::Fleet;
use super::window::{Sums, WINDOW_S, Weight, Window};
use crate::load::Report;
use crate::process;

/// Time that an engine or the control plane has to report its state; a stopped one must not stop
/// the table.
const LOOK_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) struct View {
    pub(super) at: Duration,
    pub(super) scale: f64,
    pub(super) source: String,
    pub(super) routes: Vec<RouteName>,
    pub(super) engines: Vec<EngineName>,
    pub(super) planned: Side,
    pub(super) nearest: Side,
}

pub(super) struct RouteName {
    pub(super) cluster: String,
    pub(super) class: String,
    /// Scaled.
    pub(super) demand_rps: f64,
}

pub(super) struct EngineName {
    pub(super) name: String,
    /// Scaled, all replicas.
    pub(super) capacity_rps: f64,
}

/// One fleet as seen from outside.
pub(super) struct Side {
    clusters: Vec<String>,
    classes: usize,
    /// By cluster, then class.
    pub(super) windows: Vec<Window>,
    /// By engine; `None` when it did not answer.
    pub(super) engines: Vec<Option<EngineState>>,
    pub(super) generation: u64,
    /// The mean latency the plan expects.
    pub(super) objective_ms: Option<f64>,
    /// Effective weights, by cluster, then class.
    weights: Vec<BTreeMap<String, f64>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct EngineState {
    pub(super) load_rps: f64,
    pub(super) running: f64,
    pub(super) waiting: f64,
}

/// The view as a JSON object.
#[derive(Serialize)]
pub(super) struct Json<'v> {
    at_s: f64,
    scale: f64,
    window_s: f64,
    generation: u64,
    objective_ms: Option<f64>,
    routes: Vec<RouteJson<'v>>,
    engines: Vec<EngineJson<'v>>,
    planned: Sums,
    nearest: Sums,
}

#[derive(Serialize)]
struct RouteJson<'v> {
    cluster: &'v str,
    class: &'v str,
    demand_rps: f64,
    weights: Vec<Weight>,
    /// Largest difference between a published and an achieved weight.
    gap_frac: f64,
    planned: Sums,
    nearest: Sums,
}

#[derive(Serialize)]
struct EngineJson<'v> {
    engine: &'v str,
    capacity_rps: f64,
    planned: Option<EngineState>,
    nearest: Option<EngineState>,
}

impl View {
    pub(super) fn new(config: &Config, scale: f64, source: String) -> Self {
        let fleet = &config.fleet;
        let routes = fleet.clusters.iter().flat_map(|cluster| {
            fleet.classes.iter().zip(&cluster.demand_rps).map(move |(class, rps)| RouteName {
                cluster: cluster.name.clone(),
                class: class.name.clone(),
                demand_rps: rps * scale,
            })
        });
        let engines = fleet.engines.iter().map(|engine| EngineName {
            name: engine.name.clone(),
            capacity_rps: fleet.profiles[engine.profile].capacity_rps * f64::from(engine.replicas) * scale,
        });
        let side =
            || Side::new(fleet.clusters.iter().map(|c| c.name.clone()).collect(), fleet.classes.len(), fleet.engines.len());
        Self {
            at: Duration::ZERO,
            scale,
            source,
            routes: routes.collect(),
            engines: engines.collect(),
            planned: side(),
            nearest: side(),
        }
    }

    pub(super) fn json(&self) -> Json<'_> {
        let routes = self.routes.iter().enumerate().map(|(number, route)| {
            let weights = self.planned.windows[number].weights();
            RouteJson {
                cluster: &route.cluster,
                class: &route.class,
                demand_rps: route.demand_rps,
                gap_frac: weights.iter().map(|w| (w.published - w.achieved).abs()).fold(0.0, f64::max),
                weights,
                planned: self.planned.windows[number].sums(),
                nearest: self.nearest.windows[number].sums(),
            }
        });
        let engines = self.engines.iter().enumerate().map(|(number, engine)| EngineJson {
            engine: &engine.name,
            capacity_rps: engine.capacity_rps,
            planned: self.planned.engines[number],
            nearest: self.nearest.engines[number],
        });
        Json {
            at_s: self.at.as_secs_f64(),
            scale: self.scale,
            window_s: WINDOW_S,
            generation: self.planned.generation,
            objective_ms: self.planned.objective_ms,
            routes: routes.collect(),
            engines: engines.collect(),
            planned: self.planned.all(),
            nearest: self.nearest.all(),
        }
    }
}

impl Side {
    fn new(clusters: Vec<String>, classes: usize, engines: usize) -> Self {
        let routes = clusters.len() * classes;
        Self {
            clusters,
            classes,
            windows: (0..routes).map(|_| Window::default()).collect(),
            engines: vec![None; engines],
            generation: 0,
            objective_ms: None,
            weights: vec![BTreeMap::new(); routes],
        }
    }

    /// Adds one interval of one class.
    pub(super) fn add(&mut self, (class, report): (ClassId, Report)) {
        for row in &report.targets {
            if let Some(cluster) = self.clusters.iter().position(|name| *name == row.name) {
                let number = cluster * self.classes + class.index();
                self.windows[number].add(row, report.seconds, &self.weights[number]);
            }
        }
    }

    /// Asks the engines for their state and the control plane for its snapshot.
    pub(super) async fn look(&mut self, fleet: &mut Fleet) {
        for (state, (address, _)) in self.engines.iter_mut().zip(&fleet.engines) {
            *state = engine_state(*address, *state).await;
        }
        // Without the control plane the last snapshot holds, as it does for the proxies.
        if let Some(snapshot) = snapshot(fleet.control).await {
            self.generation = snapshot.generation;
            self.objective_ms = Some(snapshot.objective_ms);
            for (number, weights) in self.weights.iter_mut().enumerate() {
                let (cluster, class) = (ClusterId::of(number / self.classes), ClassId::of(number % self.classes));
                let shares = snapshot.route(cluster, class).map(|route| &route.weights[..]).unwrap_or_default();
                *weights = shares.iter().map(|s| (snapshot.engines[s.engine.index()].name.clone(), s.weight)).collect();
            }
        }
    }

    pub(super) fn all(&self) -> Sums {
        let mut sums = Window::all(self.windows.iter());
        sums.seconds /= self.windows.len().max(1) as f64;
        sums
    }
}

/// `None` when nobody listens there; an engine that is only slow to answer keeps its last state.
async fn engine_state(address: SocketAddr, last: Option<EngineState>) -> Option<EngineState> {
    match timeout(LOOK_TIMEOUT, process::get(address, "/metrics")).await {
        Ok(Ok((_, body))) => Some(parse_state(&String::from_utf8_lossy(&body))),
        Ok(Err(_)) => None,
        Err(_) => last,
    }
}

fn parse_state(text: &str) -> EngineState {
    let value = |name: &str| {
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    };
    EngineState {
        load_rps: value("false_engine_load_rps"),
        running: value("vllm:num_requests_running"),
        waiting: value("vllm:num_requests_waiting"),
    }
}

async fn snapshot(address: SocketAddr) -> Option<Snapshot> {
    let (status, body) = timeout(LOOK_TIMEOUT, process::get(address, "/v1/snapshot")).await.ok()?.ok()?;
    if status != 200 {
        return None;
    }
    serde_json::from_slice::<Snapshot>(&body).ok().filter(|snapshot| snapshot.validate().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_found_by_their_whole_name() {
        let text = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running_max{a=\"1\"} 9\nvllm:num_requests_running{a=\"1\"} 4\n\
                    vllm:num_requests_waiting{a=\"1\"} 2\nfalse_engine_load_rps{a=\"1\"} 1.5\n";
        assert_eq!(parse_state(text), EngineState { load_rps: 1.5, running: 4.0, waiting: 2.0 });
    }
}
