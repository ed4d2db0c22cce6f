//! The answers of the admin socket and port.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::admin::live::{self, Picks};
use crate::admin::metrics as families;
use crate::admin::state::{AdminState, age};
use crate::admin::view::{
    EngineView, EnginesView, ExplainQuery, ExplainView, RollbackRequest, RollbackView, RouteView, SnapshotView, SnapshotsView,
    StatusView, UnpinRequest, WeightView, WeightsView,
};
use crate::clock::unix_ms;
use crate::control::{Command, CommandError, ControlStatus, EngineHealth, Explained, OrderRequest, PinRequest, time_left};
use crate::model::Fleet;
use crate::plan::Route;
use crate::plan::explain::weights::{WeightReason, explain_routes};
use crate::publish::snapshot::{EngineEntry, Snapshot};
use crate::publish::store::{DirStore, StoreError};
use crate::publish::{Generation, history, snapshot};
use crate::telemetry;

pub(super) async fn metrics(State(state): State<AdminState>) -> Response {
    ([(header::CONTENT_TYPE, telemetry::CONTENT_TYPE)], families::exposition(&state)).into_response()
}

pub(super) async fn ready(State(state): State<AdminState>) -> Response {
    match state.readiness() {
        Ok(generation) => (StatusCode::OK, format!("generation {generation}\n")).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

pub(super) async fn status(State(state): State<AdminState>) -> Json<StatusView> {
    Json(state.status())
}

pub(super) async fn engines(State(state): State<AdminState>) -> Json<EnginesView> {
    let Some(snapshot) = state.snapshot() else { return Json(EnginesView::default()) };
    let control = state.controller.as_ref().map(|controller| controller.status.borrow().clone());
    let mut live = state.data.as_deref().map(live::engines).unwrap_or_default();
    let view = |entry: &EngineEntry| {
        let health = control.as_ref().and_then(|status| status.engines.iter().find(|e| e.engine == entry.name));
        // A controller knows the present; a snapshot tells of when it was published.
        let present = health.and_then(|health| health.present.as_ref());
        EngineView {
            engine: entry.name.clone(),
            region: entry.region.clone(),
            address: entry.address,
            profile: health.map(|e| e.profile.clone()),
            capacity_rps: present.map_or(entry.capacity_rps, |now| now.capacity_rps),
            load_rps: present.map_or(entry.load_rps, |now| now.load_rps),
            utilisation: present.map_or(entry.load_rps / entry.capacity_rps, |now| now.load_rps / now.capacity_rps).max(0.0),
            latency_ms: present.map_or(entry.latency_ms, |now| now.latency_ms),
            price_ms: entry.price_ms,
            ready: health.map(|e| e.ready),
            ready_replicas: health.and_then(|e| e.ready_replicas),
            signals: health.and_then(|e| e.signals.clone()),
            signals_at_s: health.and_then(|e| e.signals_at_s),
            signals_error: health.and_then(|e| e.signals_error.clone()),
            order: entry.order.clone(),
            live: live.remove(&entry.name),
        }
    };
    Json(EnginesView(snapshot.engines.iter().map(view).collect()))
}

pub(super) async fn weights(State(state): State<AdminState>) -> Response {
    let Some(snapshot) = state.snapshot() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no snapshot yet").into_response();
    };
    let picks = state.data.as_ref().map(|data| (data.setup().cluster.clone(), live::picks(data)));
    let control = state.controller.as_ref().map(|controller| controller.status.borrow().clone());
    let view = |route: &snapshot::Route| {
        let cluster = &snapshot.clusters[route.cluster.index()].name;
        let own = picks.as_ref().filter(|(own, _)| own == cluster).map(|(_, picks)| picks);
        route_view(&snapshot, route, control.as_ref(), own)
    };
    let routes = snapshot.routes.iter().map(view).collect();
    let failover = state.data.as_ref().map_or_else(Vec::new, |data| data.status().failed_over);
    Json(WeightsView { generation: Generation(snapshot.generation), failover, routes }).into_response()
}

fn route_view(snapshot: &Snapshot, route: &snapshot::Route, control: Option<&ControlStatus>, picks: Option<&Picks>) -> RouteView {
    let (cluster, class) = (&snapshot.clusters[route.cluster.index()].name, &snapshot.classes[route.class.index()].name);
    let demand = control.and_then(|status| status.clusters.iter().find(|of| of.cluster == *cluster));
    let present = demand.and_then(|of| of.demand_rps.iter().find(|(name, _)| name == class));
    let weight = |share: &snapshot::Share| {
        let engine = &snapshot.engines[share.engine.index()].name;
        let key = (class.clone(), engine.clone());
        WeightView { engine: engine.clone(), weight: share.weight, picks: picks.map(|p| p.get(&key).copied().unwrap_or(0)) }
    };
    RouteView {
        cluster: cluster.clone(),
        class: class.clone(),
        demand_rps: route.demand_rps,
        present_demand_rps: present.map(|&(_, rps)| rps),
        shed_frac: route.shed_frac,
        pinned: route.pinned,
        weights: route.weights.iter().map(weight).collect(),
    }
}

/// Most weights in one explanation, which are some megabytes of JSON. A fleet of 100 clusters and
/// 2,000 engines has a million.
const EXPLAINED_MOST: usize = 20_000;

pub(super) async fn explain(State(state): State<AdminState>, Json(query): Json<ExplainQuery>) -> Response {
    let Some(controller) = &state.controller else { return no_controller() };
    let Some(explained) = controller.explained.borrow().clone() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no plan yet").into_response();
    };
    let config = Arc::clone(&controller.config);
    let engines = controller.status.borrow().engines.clone();
    // Off the runtime's thread: it takes tens of milliseconds for a large fleet.
    let answer = tokio::task::spawn_blocking(move || explanation(&config.fleet, &explained, &query)).await;
    match answer.expect("explaining a plan does not panic") {
        Ok(mut view) => {
            name_orders(&mut view, &engines);
            Json(view).into_response()
        }
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
    let explanation = explain_routes(fleet, &explained.inputs, &explained.plan, is_wanted).only(None, None, engine.as_deref());
    Ok(ExplainView { generation: explained.generation, explanation })
}

/// Names the operator's order where it is the reason for which an engine was not ready.
fn name_orders(view: &mut ExplainView, engines: &[EngineHealth]) {
    for row in view.explanation.routes.iter_mut().flat_map(|route| &mut route.engines) {
        let order = engines.iter().find(|of| of.engine == row.engine).and_then(|of| of.order.as_ref());
        if let Some(order) = order.filter(|order| order.kind.withdraws() && row.reason == WeightReason::NotReady) {
            row.reason = WeightReason::Withdrawn { order: order.to_string() };
        }
    }
}

pub(super) async fn pin(State(state): State<AdminState>, pin: Result<Json<PinRequest>, JsonRejection>) -> Response {
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

pub(super) async fn unpin(
    State(state): State<AdminState>,
    Json(UnpinRequest { cluster, class }): Json<UnpinRequest>,
) -> Response {
    command(&state, |done| Command::Unpin { cluster, class, done }).await
}

pub(super) async fn order(State(state): State<AdminState>, order: Result<Json<OrderRequest>, JsonRejection>) -> Response {
    let order = match order {
        Ok(Json(order)) => order,
        Err(rejection) => return (StatusCode::BAD_REQUEST, last_cause(&rejection)).into_response(),
    };
    command(&state, |done| Command::Order(order, done)).await
}

pub(super) async fn snapshots(State(state): State<AdminState>) -> Response {
    let dir = match (&state.controller, &state.data) {
        (Some(controller), _) => controller.dir.clone(),
        (None, Some(data)) => data.setup().store.clone(),
        (None, None) => return Json(SnapshotsView::default()).into_response(),
    };
    let in_use = state.snapshot().map(|snapshot| Generation(snapshot.generation));
    // Off the runtime's thread: it reads many files of many kilobytes.
    let listed = tokio::task::spawn_blocking(move || list(&dir, in_use)).await;
    match listed.expect("listing files does not panic") {
        Ok(view) => Json(view).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn list(dir: &DirStore, in_use: Option<Generation>) -> Result<SnapshotsView, StoreError> {
    let mut views = Vec::new();
    let mut before: Option<Snapshot> = None;
    for generation in dir.list()? {
        let read = dir.load(generation);
        let snapshot = read.as_ref().ok();
        views.push(SnapshotView {
            generation,
            is_current: in_use == Some(generation),
            age_s: snapshot.map_or(0.0, |s| age(s).as_secs_f64()),
            status: snapshot.map(|s| s.status),
            objective_ms: snapshot.map(|s| s.objective_ms),
            reason: snapshot.map(|s| s.reason.clone()),
            target_clusters: snapshot.map_or_else(Vec::new, |s| s.target_clusters.clone()),
            error: read.as_ref().err().map(ToString::to_string),
            moved: before.as_ref().zip(snapshot).map(|(before, after)| history::moves(before, after)),
        });
        before = read.ok().or(before);
    }
    views.reverse();
    Ok(SnapshotsView(views))
}

pub(super) async fn rollback(State(state): State<AdminState>, Json(request): Json<RollbackRequest>) -> Response {
    let generation: Generation = match request.generation.parse() {
        Ok(generation) => generation,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("generation {error}")).into_response(),
    };
    let ttl = time_left(request.ttl_ms, request.expires_unix_ms, unix_ms());
    let Some(controller) = &state.controller else { return no_controller() };
    match controller.ask(|done| Command::Rollback { generation, ttl, done }).await {
        Ok(published) => Json(RollbackView { generation: Generation(published) }).into_response(),
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
