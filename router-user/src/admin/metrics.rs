//! Fills the metric families from the same sources as the commands.

use crate::admin::families as f;
use crate::admin::state::{AdminState, age};
use crate::control::{ControlStatus, EngineHealth};
use crate::dataplane::DataRole;
use crate::policy::outlier::Evidence;
use crate::proxy::{DataPlaneStats, EngineStats, Latencies};
use crate::publish::Generation;
use crate::publish::snapshot::{Snapshot, Status};
use crate::telemetry::{Exposition, Family};

/// All metrics of this process as text.
pub(super) fn exposition(state: &AdminState) -> String {
    let mut out = Exposition::default();
    out.family(&f::BUILD_INFO).add(&[env!("CARGO_PKG_VERSION")], 1.0);
    out.family(&f::READY).add(&[], flag(state.readiness().is_ok()));
    if let Some(snapshot) = state.snapshot() {
        plan(&mut out, &snapshot);
        weights(&mut out, &snapshot);
    }
    if let Some(controller) = &state.controller {
        let status = controller.status.borrow().clone();
        control(&mut out, &status);
        engine_health(&mut out, &status.engines);
    }
    if let Some(data) = &state.data {
        let stats = data.setup().plane.stats();
        data_plane(&mut out, data, &stats);
        requests(&mut out, &stats);
        engine_traffic(&mut out, &stats.engines);
        engine_latencies(&mut out, &stats.engines);
        kernel(&mut out, data);
    }
    out.into_text()
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

fn plan(out: &mut Exposition, snapshot: &Snapshot) {
    out.family(&f::SNAPSHOT_INFO).add(&[&Generation(snapshot.generation).to_string()], 1.0);
    out.family(&f::SNAPSHOT_GENERATION).add(&[], snapshot.generation as f64);
    out.family(&f::SNAPSHOT_AGE).add(&[], age(snapshot).as_secs_f64());
    out.family(&f::SNAPSHOT_DEGRADED).add(&[], flag(snapshot.status == Status::Degraded));
    out.family(&f::PLAN_LATENCY).add(&[], snapshot.objective_ms / 1e3);
    let mut capacity = out.family(&f::PLAN_CAPACITY);
    snapshot.engines.iter().for_each(|engine| capacity.add(&[&engine.name], engine.capacity_rps));
    let mut load = out.family(&f::PLAN_LOAD);
    snapshot.engines.iter().for_each(|engine| load.add(&[&engine.name], engine.load_rps));
    let mut orders = out.family(&f::PLAN_ORDER);
    for engine in &snapshot.engines {
        let withdrawing = engine.order.iter().filter(|order| order.kind.withdraws());
        withdrawing.for_each(|order| orders.add(&[&engine.name, order.kind.name()], 1.0));
    }
}

fn weights(out: &mut Exposition, snapshot: &Snapshot) {
    let names = |route: &crate::publish::snapshot::Route| {
        (&*snapshot.clusters[route.cluster.index()].name, &*snapshot.classes[route.class.index()].name)
    };
    let mut weights = out.family(&f::PLAN_WEIGHT);
    for route in &snapshot.routes {
        let (cluster, class) = names(route);
        for share in &route.weights {
            weights.add(&[cluster, class, &snapshot.engines[share.engine.index()].name], share.weight);
        }
    }
    let mut shed = out.family(&f::PLAN_SHED);
    for route in &snapshot.routes {
        let (cluster, class) = names(route);
        shed.add(&[cluster, class], route.shed_frac);
    }
}

fn control(out: &mut Exposition, status: &ControlStatus) {
    out.family(&f::CONTROL_LEADS).add(&[], flag(status.standby_reason.is_none()));
    out.family(&f::CONTROL_TRIAL).add(&[], flag(status.trial.is_some()));
    out.family(&f::CONTROL_PLANS).add(&[], status.plans as f64);
    out.family(&f::CONTROL_PUBLISHED).add(&[], status.published as f64);
    out.family(&f::CONTROL_FAILURES).add(&[], status.failures as f64);
    out.family(&f::CONTROL_DURATION).add(&[], status.last_plan_ms / 1e3);
    out.family(&f::CONTROL_ANOMALIES).add(&[], status.anomalies.len() as f64);
    let mut demand = out.family(&f::CONTROL_DEMAND);
    for cluster in &status.clusters {
        for (class, rps) in &cluster.demand_rps {
            demand.add(&[&cluster.cluster, class], *rps);
        }
    }
}

fn engine_health(out: &mut Exposition, engines: &[EngineHealth]) {
    type Read = fn(&EngineHealth) -> Option<f64>;
    let families: [(&'static Family, Read); 6] = [
        (&f::CONTROL_READY, |e| Some(flag(e.ready))),
        (&f::CONTROL_DRIFT, |e| e.drift.as_ref().map(|drift| drift.ratio)),
        (&f::CONTROL_REPLICAS, |e| e.ready_replicas.map(f64::from)),
        (&f::CONTROL_RUNNING, |e| e.signals.as_ref()?.running),
        (&f::CONTROL_WAITING, |e| e.signals.as_ref()?.waiting),
        (&f::CONTROL_KV, |e| e.signals.as_ref()?.kv_usage_frac),
    ];
    for (family, read) in families {
        let mut samples = out.family(family);
        for (engine, value) in engines.iter().filter_map(|e| Some((e, read(e)?))) {
            samples.add(&[&engine.engine], value);
        }
    }
}

fn data_plane(out: &mut Exposition, data: &DataRole, stats: &DataPlaneStats) {
    let status = data.status();
    out.family(&f::PROXY_SILENCE).add(&[], status.silence.as_secs_f64());
    out.family(&f::PROXY_PLAN_SHARE).add(&[], status.plan_share);
    let mut failover = out.family(&f::PROXY_FAILOVER);
    status.failed_over.iter().for_each(|engine| failover.add(&[engine], 1.0));
    out.family(&f::PROXY_CONNECTIONS).add(&[], stats.connections as f64);
}

fn requests(out: &mut Exposition, stats: &DataPlaneStats) {
    let mut outcomes = out.family(&f::PROXY_REQUESTS);
    stats.outcomes.iter().for_each(|(outcome, &count)| outcomes.add(&[outcome], count as f64));
    let mut retries = out.family(&f::PROXY_RETRIES);
    stats.retries.iter().for_each(|(reason, &count)| retries.add(&[reason], count as f64));
    out.family(&f::PROXY_RETRIES_DENIED).add(&[], stats.retries_denied as f64);
    out.family(&f::PROXY_STORED_IDS).add(&[], stats.stored_ids as f64);
    out.family(&f::PROXY_STORED_IDS_EVICTED).add(&[], stats.stored_ids_evicted as f64);
    out.family(&f::PROXY_CLIENT_RETRIES).add(&[], stats.client_retries as f64);
    queue(out, stats);
    let mut arrivals = out.family(&f::PROXY_ARRIVALS);
    stats.classes.iter().for_each(|class| arrivals.add(&[&class.class], class.arrivals as f64));
    let mut spills = out.family(&f::PROXY_SPILLS);
    stats.classes.iter().for_each(|class| spills.add(&[&class.class], class.spills as f64));
    let mut picks = out.family(&f::PROXY_PICKS);
    for class in &stats.classes {
        class.picks.iter().for_each(|(engine, &count)| picks.add(&[&class.class, engine], count as f64));
    }
}

fn queue(out: &mut Exposition, stats: &DataPlaneStats) {
    let mut lengths = out.family(&f::PROXY_WAITING);
    for (priority, &length) in stats.queue.lengths.iter().enumerate() {
        lengths.add(&[&priority.to_string()], length as f64);
    }
    let waits = &stats.queue.waits;
    out.family(&f::PROXY_QUEUE_WAIT).add_histogram(&[], &waits.bounds_s, &waits.buckets, waits.sum_s);
    let mut refusals = out.family(&f::PROXY_REFUSALS);
    for (reason, by_priority) in &stats.queue.refusals {
        for (priority, &count) in by_priority.iter().enumerate() {
            refusals.add(&[reason, &priority.to_string()], count as f64);
        }
    }
    let mut limits = out.family(&f::PROXY_LIMIT);
    stats.queue.limits.iter().for_each(|(engine, limit)| limits.add(&[engine], *limit as f64));
}

fn engine_traffic(out: &mut Exposition, engines: &[EngineStats]) {
    type Read = fn(&EngineStats) -> f64;
    let families: [(&'static Family, Read); 7] = [
        (&f::ENGINE_IN_FLIGHT, |e| e.in_flight as f64),
        (&f::ENGINE_DOWN, |e| flag(e.multiplier == 0.0)),
        (&f::ENGINE_CONNECT_FAILURES, |e| e.connect_failures as f64),
        (&f::ENGINE_RESETS, |e| e.resets as f64),
        (&f::ENGINE_BROKEN, |e| e.broken_streams as f64),
        (&f::ENGINE_EVENTS, |e| e.events as f64),
        (&f::ENGINE_BYTES, |e| e.bytes as f64),
    ];
    for (family, read) in families {
        let mut samples = out.family(family);
        engines.iter().for_each(|engine| samples.add(&[&engine.engine], read(engine)));
    }
    let mut penalty = out.family(&f::ENGINE_PENALTY);
    for engine in engines {
        let by_none = if engine.state.is_by_operator() { "operator" } else { "none" };
        let reason = engine.reason.map_or(by_none, Evidence::name);
        penalty.add(&[&engine.engine, reason], 1.0 - engine.multiplier);
    }
    let mut failures = out.family(&f::ENGINE_FAILURES);
    for engine in engines {
        engine.failures.iter().for_each(|(reason, &count)| failures.add(&[&engine.engine, reason], count as f64));
    }
    let mut responses = out.family(&f::ENGINE_RESPONSES);
    for engine in engines {
        for (&count, code) in engine.served.iter().zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
            responses.add(&[&engine.engine, code], count as f64);
        }
    }
}

fn engine_latencies(out: &mut Exposition, engines: &[EngineStats]) {
    type Read = fn(&EngineStats) -> &Latencies;
    let families: [(&'static Family, Read); 3] =
        [(&f::ENGINE_TTFT, |e| &e.ttft), (&f::ENGINE_ITL, |e| &e.itl), (&f::ENGINE_E2E, |e| &e.e2e)];
    for (family, read) in families {
        let mut samples = out.family(family);
        for engine in engines {
            let latencies = read(engine);
            samples.add_histogram(&[&engine.engine], &latencies.bounds_s, &latencies.buckets, latencies.sum_s);
        }
    }
}

fn kernel(out: &mut Exposition, data: &DataRole) {
    let Some(status) = data.setup().kernel.as_ref().and_then(|kernel| kernel.status()) else { return };
    out.family(&f::KERNEL_GENERATION).add(&[], status.generation as f64);
    let mut outcomes = out.family(&f::KERNEL_OUTCOMES);
    status.counters.iter().for_each(|(outcome, count)| outcomes.add(&[outcome], *count as f64));
    let mut picks = out.family(&f::KERNEL_PICKS);
    status.engines.iter().for_each(|engine| picks.add(&[&engine.address.to_string()], engine.picks as f64));
}
