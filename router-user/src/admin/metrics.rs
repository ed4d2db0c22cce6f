//! Everything Prometheus scrapes, from the same sources as the commands. Names start with `ilb_`; counters end in `_total`.

use super::server::{AdminState, age};
use crate::control::EngineHealth;
use crate::dataplane::DataRole;
use crate::publish::snapshot::{Snapshot, Status};
use crate::telemetry::Exposition;

pub(super) fn exposition(state: &AdminState) -> String {
    let mut out = Exposition::default();
    out.gauge("ilb_build_info", "Always 1; the version is a label.").sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(snapshot) = state.snapshot() {
        plan(&mut out, &snapshot);
    }
    if let Some(controller) = &state.controller {
        control(&mut out, &controller.status.borrow());
    }
    if let Some(data) = &state.data {
        data_plane(&mut out, data);
        kernel(&mut out, data);
    }
    out.into_text()
}

fn plan(out: &mut Exposition, snapshot: &Snapshot) {
    out.gauge("ilb_snapshot_generation", "Generation of the snapshot in force.").sample(&[], snapshot.generation);
    out.gauge("ilb_snapshot_age_seconds", "Age of the snapshot in force.").sample(&[], age(snapshot).as_secs_f64());
    out.gauge("ilb_snapshot_degraded", "1 while the plan sheds demand that no legal weights carry.")
        .sample(&[], u8::from(snapshot.status == Status::Degraded));
    out.gauge("ilb_plan_latency_seconds", "Expected mean end-to-end latency under the plan.")
        .sample(&[], snapshot.objective_ms / 1e3);
    let mut capacity = out.gauge(
        "ilb_plan_engine_capacity_rps",
        "Load an engine may be given, in requests/s of the kind its profile was measured with.",
    );
    for engine in &snapshot.engines {
        capacity.sample(&[("engine", &engine.name)], engine.capacity_rps);
    }
    let mut load = out.gauge("ilb_plan_engine_load_rps", "Load the plan gives an engine.");
    for engine in &snapshot.engines {
        load.sample(&[("engine", &engine.name)], engine.load_rps);
    }
    let mut weight = out.gauge("ilb_plan_weight", "Published weight of an engine for a (cluster, class).");
    for route in &snapshot.routes {
        let (cluster, class) = (&snapshot.clusters[route.cluster.index()].name, &snapshot.classes[route.class.index()].name);
        for share in &route.weights {
            let engine = &snapshot.engines[share.engine.index()].name;
            weight.sample(&[("cluster", cluster), ("class", class), ("engine", engine)], share.weight);
        }
    }
    let mut shed = out.gauge("ilb_plan_shed_ratio", "Fraction of a (cluster, class) demand that the plan refuses.");
    for route in &snapshot.routes {
        let (cluster, class) = (&snapshot.clusters[route.cluster.index()].name, &snapshot.classes[route.class.index()].name);
        shed.sample(&[("cluster", cluster), ("class", class)], route.shed_frac);
    }
}

fn control(out: &mut Exposition, status: &crate::control::ControlStatus) {
    out.gauge("ilb_control_leads", "1 while this controller publishes, 0 while it stands by for another.")
        .sample(&[], u8::from(status.stands_by.is_none()));
    out.gauge("ilb_control_trial", "1 while a plan is on trial in the canary's cluster.")
        .sample(&[], u8::from(status.trial.is_some()));
    out.counter("ilb_control_plans_total", "Plans made.").sample(&[], status.plans);
    out.counter("ilb_control_published_total", "Plans published.").sample(&[], status.published);
    out.counter("ilb_control_failures_total", "Plans that failed; the previous weights stayed.").sample(&[], status.failures);
    out.gauge("ilb_control_plan_seconds", "Time the last plan took.").sample(&[], status.last_plan_ms / 1e3);
    let mut demand = out.gauge("ilb_control_demand_rps", "Estimated demand of a (cluster, class).");
    for cluster in &status.clusters {
        for (class, rps) in &cluster.demand_rps {
            demand.sample(&[("cluster", &cluster.cluster), ("class", class)], rps);
        }
    }
    let mut ready = out.gauge("ilb_control_engine_ready", "1 while an engine answers its health probe.");
    for engine in &status.engines {
        ready.sample(&[("engine", &engine.engine)], u8::from(engine.ready));
    }
    type Read = fn(&EngineHealth) -> Option<f64>;
    let said: [(&str, &str, Read); 5] = [
        ("ilb_control_engine_drift_ratio", "Time in an engine over what its profile says, where the two differ.", |e| {
            e.drift.as_ref().map(|drift| drift.ratio)
        }),
        ("ilb_control_engine_ready_replicas", "Ready replicas by the engine's own account.", |e| e.ready_replicas.map(f64::from)),
        ("ilb_control_engine_running", "Requests that an engine says it works on.", |e| e.signals.as_ref()?.running),
        ("ilb_control_engine_waiting", "Requests that an engine says wait inside it.", |e| e.signals.as_ref()?.waiting),
        ("ilb_control_engine_kv_usage_ratio", "Share of its KV cache that an engine says is in use.", |e| {
            e.signals.as_ref()?.kv_usage_frac
        }),
    ];
    for (name, help, read) in said {
        let mut family = out.gauge(name, help);
        for (engine, value) in status.engines.iter().filter_map(|e| Some((e, read(e)?))) {
            family.sample(&[("engine", &engine.engine)], value);
        }
    }
}

fn data_plane(out: &mut Exposition, data: &DataRole) {
    let stats = data.plane.stats();
    out.gauge("ilb_proxy_controller_silence_seconds", "Time since a controller was last known to live.")
        .sample(&[], data.contact.silence().as_secs_f64());
    let in_force = data.in_force();
    out.gauge("ilb_proxy_plan_trust", "How much of the plan of a silent controller is left, 0 to 1.").sample(&[], in_force.trust);
    let mut replaced = out.gauge("ilb_proxy_alternate", "1 for an engine for whose loss the alternate weights are in force.");
    in_force.replaced.iter().for_each(|engine| _ = replaced.sample(&[("engine", engine)], 1));
    out.gauge("ilb_proxy_connections", "Open client connections.").sample(&[], stats.connections);
    let mut outcomes = out.counter("ilb_proxy_requests_total", "Requests by how they ended; each counts once.");
    for (outcome, count) in &stats.outcomes {
        outcomes.sample(&[("outcome", outcome)], count);
    }
    let mut retries = out.counter("ilb_proxy_retries_total", "Requests sent to an engine once more, by reason.");
    for (reason, count) in &stats.retries {
        retries.sample(&[("reason", reason)], count);
    }
    out.counter("ilb_proxy_retries_denied_total", "Retries above the budget.").sample(&[], stats.retries_denied);
    let mut arrivals = out.counter("ilb_proxy_arrivals_total", "Requests that arrived, by class; retries are not arrivals.");
    for class in &stats.classes {
        arrivals.sample(&[("class", &class.class)], class.arrivals);
    }
    let mut picks = out.counter("ilb_proxy_picks_total", "Picks of an engine for a class.");
    for class in &stats.classes {
        for (engine, count) in &class.picks {
            picks.sample(&[("class", &class.class), ("engine", engine)], count);
        }
    }
    type Read = fn(&crate::proxy::EngineStats) -> f64;
    let gauges: [(&str, &str, Read); 2] = [
        ("ilb_proxy_engine_in_flight", "Requests in flight to an engine.", |e| e.in_flight as f64),
        ("ilb_proxy_engine_out", "1 while this data plane passes an engine over because it failed.", |e| {
            f64::from(u8::from(e.health == Some(crate::policy::health::HealthState::Out)))
        }),
    ];
    for (name, help, read) in gauges {
        let mut family = out.gauge(name, help);
        stats.engines.iter().for_each(|e| _ = family.sample(&[("engine", &e.engine)], read(e)));
    }
    let counters: [(&str, &str, Read); 9] = [
        ("ilb_proxy_engine_connect_failures_total", "Connections to an engine that could not be made.", |e| {
            e.connect_failures as f64
        }),
        ("ilb_proxy_engine_resets_total", "Connections an engine closed before it answered.", |e| e.resets as f64),
        ("ilb_proxy_engine_broken_streams_total", "Answers that broke off after they had begun.", |e| e.broken_streams as f64),
        ("ilb_proxy_engine_ttft_seconds_sum_total", "Sum of times to the first byte of an answer's body.", |e| {
            e.ttft_ms_sum / 1e3
        }),
        ("ilb_proxy_engine_ttft_seconds_count_total", "Answers in that sum.", |e| e.ttft_count as f64),
        ("ilb_proxy_engine_latency_seconds_sum_total", "Sum of times to the last byte of an answer.", |e| {
            e.end_to_end_ms_sum / 1e3
        }),
        ("ilb_proxy_engine_latency_seconds_count_total", "Answers in that sum.", |e| e.end_to_end_count as f64),
        ("ilb_proxy_engine_events_total", "Events of event streams.", |e| e.events as f64),
        ("ilb_proxy_engine_bytes_total", "Bytes of answers' bodies.", |e| e.bytes as f64),
    ];
    for (name, help, read) in counters {
        let mut family = out.counter(name, help);
        stats.engines.iter().for_each(|e| _ = family.sample(&[("engine", &e.engine)], read(e)));
    }
    let mut served = out.counter("ilb_proxy_engine_responses_total", "Answers of an engine, by hundreds of the status.");
    for engine in &stats.engines {
        for (count, code) in engine.served.iter().zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
            served.sample(&[("engine", &engine.engine), ("code", code)], count);
        }
    }
}

fn kernel(out: &mut Exposition, data: &DataRole) {
    let Some(status) = data.kernel.as_ref().and_then(|kernel| kernel.status()) else { return };
    out.gauge("ilb_kernel_generation", "Generation of the kernel's live table.").sample(&[], status.generation);
    let mut outcomes = out.counter("ilb_kernel_outcomes_total", "Connections and listeners by what the programs did with them.");
    for (outcome, count) in &status.counters {
        outcomes.sample(&[("outcome", outcome)], count);
    }
    let mut picks = out.counter("ilb_kernel_engine_picks_total", "Connections steered to an engine's listener.");
    for engine in &status.engines {
        picks.sample(&[("address", &engine.address.to_string())], engine.picks);
    }
}
