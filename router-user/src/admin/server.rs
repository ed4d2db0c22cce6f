//! Answers operators on the Unix socket, and Prometheus and probes on TCP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::{TcpListener, UnixListener};

use super::metrics;
use super::view::{
    EngineView, EnginesView, ExplainQuery, ExplainView, RollbackRequest, RollbackView, RouteView, SnapshotView, SnapshotsView,
    StatusView, UnpinRequest, WeightView, WeightsView,
};
use crate::clock::{Clock, unix_ms};
use crate::control::{Command, CommandError, ControllerHandle, Explained, PinRequest};
use crate::dataplane::DataRole;
use crate::model::Fleet;
use crate::plan::Route;
use crate::plan::explain::weights;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DirStore, StoreError};
use crate::publish::{Generation, history};

/// What this process runs, for those who ask.
#[derive(Clone)]
pub struct AdminState {
    pub clock: Clock,
    pub controller: Option<ControllerHandle>,
    pub data: Option<Arc<DataRole>>,
}

/// Serves operators on a socket from [`bind_socket`](super::bind_socket), until the process ends.
pub fn serve_socket(state: AdminState, listener: UnixListener) {
    let router = Router::new()
        .route("/v1/status", get(async |State(state): State<AdminState>| Json(state.status())))
        .route("/v1/engines", get(engines))
        .route("/v1/weights", get(weights))
        .route("/v1/explain", axum::routing::post(explain))
        .route("/v1/pins", axum::routing::post(pin).delete(unpin))
        .route("/v1/snapshots", get(snapshots))
        .route("/v1/rollback", axum::routing::post(rollback))
        .with_state(state);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin socket ended");
        }
    });
}

/// Serves `/metrics`, `/healthz` and `/readyz`, until the process ends.
pub fn serve_tcp(state: AdminState, listener: TcpListener) {
    let router = Router::new()
        .route("/metrics", get(async |State(state): State<AdminState>| metrics_text(&state)))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async |State(state): State<AdminState>| ready(&state)))
        .with_state(state);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin port ended");
        }
    });
}

impl AdminState {
    /// The snapshot in force: what the data plane applies, or else what the controller published last.
    pub(super) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        match (&self.data, &self.controller) {
            (Some(data), _) => data.plane.routes.load().as_ref().map(|routes| Arc::clone(&routes.snapshot)),
            (None, Some(controller)) => controller.snapshots.borrow().clone(),
            (None, None) => None,
        }
    }

    pub(super) fn status(&self) -> StatusView {
        let snapshot = self.snapshot();
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.clock.now().as_secs_f64(),
            generation: snapshot.as_ref().map(|s| s.generation),
            snapshot_age_s: snapshot.as_ref().map(|s| age(s).as_secs_f64()),
            status: snapshot.as_ref().map(|s| s.status),
            objective_ms: snapshot.as_ref().map(|s| s.objective_ms),
            control: self.controller.as_ref().map(|c| c.status.borrow().clone()),
            proxy: self.data.as_ref().map(|data| data.view()),
            kernel: self.data.as_ref().and_then(|data| data.kernel_status()),
            kernel_error: self.data.as_ref().and_then(|data| data.kernel_error.clone()),
        }
    }
}

/// Age of a snapshot by the wall clock; zero when that clock was set back.
pub(super) fn age(snapshot: &Snapshot) -> Duration {
    Duration::from_millis(unix_ms().saturating_sub(snapshot.published_unix_ms))
}

async fn engines(State(state): State<AdminState>) -> Json<EnginesView> {
    let Some(snapshot) = state.snapshot() else { return Json(EnginesView::default()) };
    let health = state.controller.as_ref().map(|c| c.status.borrow().engines.clone());
    let live = state.data.as_ref().map(|data| data.live_engines());
    let view = |entry: &crate::publish::snapshot::EngineEntry| {
        let health = health.as_ref().and_then(|h| h.iter().find(|e| e.engine == entry.name));
        EngineView {
            engine: entry.name.clone(),
            region: entry.region.clone(),
            address: entry.address,
            profile: health.map(|e| e.profile.clone()),
            capacity_rps: entry.capacity_rps,
            load_rps: entry.load_rps,
            utilisation: if entry.capacity_rps > 0.0 { entry.load_rps / entry.capacity_rps } else { 0.0 },
            latency_ms: entry.latency_ms,
            price_ms: entry.price_ms,
            ready: health.map(|e| e.ready),
            ready_replicas: health.and_then(|e| e.ready_replicas),
            signals: health.and_then(|e| e.signals.clone()),
            signals_at_s: health.and_then(|e| e.signals_at_s),
            signals_error: health.and_then(|e| e.signals_error.clone()),
            live: live.as_ref().and_then(|l| l.get(&entry.name).cloned()),
        }
    };
    Json(EnginesView(snapshot.engines.iter().map(view).collect()))
}

async fn weights(State(state): State<AdminState>) -> Response {
    let Some(snapshot) = state.snapshot() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no snapshot yet").into_response();
    };
    let picks = state.data.as_ref().map(|data| (data.cluster.clone(), data.picks()));
    let routes = (snapshot.routes.iter())
        .map(|route| {
            let (cluster, class) = (&snapshot.clusters[route.cluster.index()].name, &snapshot.classes[route.class.index()].name);
            let own = picks.as_ref().filter(|(own, _)| own == cluster).map(|(_, picks)| picks);
            let weight = |share: &crate::publish::snapshot::Share| {
                let engine = &snapshot.engines[share.engine.index()].name;
                let key = (class.clone(), engine.clone());
                WeightView { engine: engine.clone(), weight: share.weight, picks: own.map(|p| p.get(&key).copied().unwrap_or(0)) }
            };
            RouteView {
                cluster: cluster.clone(),
                class: class.clone(),
                demand_rps: route.demand_rps,
                shed_frac: route.shed_frac,
                pinned: route.pinned,
                weights: route.weights.iter().map(weight).collect(),
            }
        })
        .collect();
    let alternate = state.data.as_ref().map_or_else(Vec::new, |data| data.in_force().replaced);
    Json(WeightsView { generation: snapshot.generation, alternate, routes }).into_response()
}

/// Rows of one explanation: some megabytes of JSON. A fleet of a hundred clusters and two thousand engines has a million.
const EXPLAINED_MOST: usize = 20_000;

async fn explain(State(state): State<AdminState>, Json(query): Json<ExplainQuery>) -> Response {
    let Some(controller) = &state.controller else { return no_controller() };
    let Some(explained) = controller.explained.borrow().clone() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no plan yet").into_response();
    };
    let config = Arc::clone(&controller.config);
    // Tens of milliseconds for a large fleet: not on the runtime's thread.
    let answer = tokio::task::spawn_blocking(move || explanation(&config.fleet, &explained, &query)).await;
    match answer.expect("explaining a plan does not panic") {
        Ok(view) => Json(view).into_response(),
        Err(message) => (StatusCode::BAD_REQUEST, message).into_response(),
    }
}

fn explanation(fleet: &Fleet, explained: &Explained, query: &ExplainQuery) -> Result<ExplainView, String> {
    let unknown = |kind: &str, name: &str| format!("--{kind} names the unknown {kind} {name:?}");
    let ExplainQuery { cluster, class, engine } = query;
    let cluster = cluster.as_ref().map(|name| fleet.cluster(name).ok_or_else(|| unknown("cluster", name))).transpose()?;
    let class = class.as_ref().map(|name| fleet.class(name).ok_or_else(|| unknown("class", name))).transpose()?;
    let one = engine.as_ref().map(|name| fleet.engine(name).ok_or_else(|| unknown("engine", name))).transpose()?;
    let is_wanted =
        |route: &Route| cluster.is_none_or(|cluster| cluster == route.cluster) && class.is_none_or(|class| class == route.class);
    let routes = explained.plan.routes.iter().filter(|route| is_wanted(route)).count();
    let rows = routes * one.map_or(fleet.engines.len(), |_| 1);
    if rows > EXPLAINED_MOST {
        return Err(format!(
            "{rows} weights are too many to explain at once, wanted at most {EXPLAINED_MOST}: name a --cluster, --class or --engine"
        ));
    }
    let explanation =
        weights::explain_routes(fleet, &explained.inputs, &explained.plan, is_wanted).only(None, None, engine.as_deref());
    Ok(ExplainView { generation: explained.generation.0, name: explained.generation.to_string(), explanation })
}

async fn pin(State(state): State<AdminState>, pin: Result<Json<PinRequest>, JsonRejection>) -> Response {
    let pin = match pin {
        Ok(Json(pin)) => pin,
        // The cause says which weight it is; what axum says around it is about its own types.
        Err(rejection) => return (StatusCode::BAD_REQUEST, last_cause(&rejection)).into_response(),
    };
    command(&state, |done| Command::Pin(pin, done)).await
}

/// The innermost cause of an error.
fn last_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

async fn unpin(State(state): State<AdminState>, Json(UnpinRequest { cluster, class }): Json<UnpinRequest>) -> Response {
    command(&state, |done| Command::Unpin { cluster, class, done }).await
}

async fn snapshots(State(state): State<AdminState>) -> Response {
    let dir = match (&state.controller, &state.data) {
        (Some(controller), _) => controller.dir.clone(),
        (None, Some(data)) => data.store.clone(),
        (None, None) => return Json(SnapshotsView::default()).into_response(),
    };
    let in_force = state.snapshot().map(|snapshot| snapshot.generation);
    // Many files of many kilobytes: not on the runtime's thread.
    let listed = tokio::task::spawn_blocking(move || list(&dir, in_force)).await;
    match listed.expect("listing files does not panic") {
        Ok(view) => Json(view).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn list(dir: &DirStore, in_force: Option<u64>) -> Result<SnapshotsView, StoreError> {
    let mut views = Vec::new();
    let mut before: Option<Snapshot> = None;
    for generation in dir.list()? {
        let read = dir.load(generation);
        let snapshot = read.as_ref().ok();
        views.push(SnapshotView {
            generation: generation.0,
            name: generation.to_string(),
            in_force: in_force == Some(generation.0),
            age_s: snapshot.map_or(0.0, |s| age(s).as_secs_f64()),
            status: snapshot.map(|s| s.status),
            objective_ms: snapshot.map(|s| s.objective_ms),
            reason: snapshot.map(|s| s.reason.clone()),
            audience: snapshot.map_or_else(Vec::new, |s| s.audience.clone()),
            error: read.as_ref().err().map(ToString::to_string),
            moved: before.as_ref().zip(snapshot).map(|(before, after)| history::moves(before, after)),
        });
        before = read.ok().or(before);
    }
    views.reverse();
    Ok(SnapshotsView(views))
}

async fn rollback(State(state): State<AdminState>, Json(request): Json<RollbackRequest>) -> Response {
    let generation: Generation = match request.generation.parse() {
        Ok(generation) => generation,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("generation {error}")).into_response(),
    };
    let expires_unix_ms = request.expires_unix_ms;
    let Some(controller) = &state.controller else { return no_controller() };
    match controller.ask(|done| Command::Rollback { generation, expires_unix_ms, done }).await {
        Ok(published) => Json(RollbackView::from(Generation(published))).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

fn no_controller() -> Response {
    let message = "this ilb runs no control plane; name the controller's socket with --socket";
    (StatusCode::CONFLICT, message).into_response()
}

async fn command<T: serde::Serialize>(
    state: &AdminState,
    command: impl FnOnce(tokio::sync::oneshot::Sender<Result<T, CommandError>>) -> Command,
) -> Response {
    let Some(controller) = &state.controller else { return no_controller() };
    match controller.ask(command).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

fn metrics_text(state: &AdminState) -> Response {
    ([(header::CONTENT_TYPE, crate::telemetry::CONTENT_TYPE)], metrics::exposition(state)).into_response()
}

/// Ready is who can decide a request: a data plane with a snapshot, or a controller that has published one.
fn ready(state: &AdminState) -> Response {
    match state.snapshot() {
        Some(snapshot) => (StatusCode::OK, format!("generation {}\n", Generation(snapshot.generation))).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "no snapshot yet\n").into_response(),
    }
}
