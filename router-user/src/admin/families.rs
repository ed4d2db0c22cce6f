//! Every metric that `/metrics` shows. docs/metrics.md is made from this table.
//!
//! Names follow Prometheus: base units (seconds, bytes, requests per second), `_total` on counters
//! only, `_ratio` for shares.

use crate::telemetry::{Family, Kind};

macro_rules! families {
    ($($name:ident: $kind:ident $text:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) static $name: Family =
            Family { name: $text, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*

        /// All of them, in the order in which they are shown.
        pub static FAMILIES: &[&Family] = &[$(&$name),*];
    };
}

families! {
    BUILD_INFO: Gauge "ilb_build_info" ["version"] "Always 1. The label is the version of ilb.";
    READY: Gauge "ilb_ready" [] "1 while /readyz answers 200, 0 while it answers 503.";

    SNAPSHOT_INFO: Gauge "ilb_snapshot_info" ["generation"]
        "Always 1. The label is the generation of the snapshot in use, written EPOCH.COUNT.";
    SNAPSHOT_GENERATION: Gauge "ilb_snapshot_generation" []
        "Generation of the snapshot in use as one number, which only grows: epoch x 2^32 + count.";
    SNAPSHOT_AGE: Gauge "ilb_snapshot_age_seconds" [] "Time since the snapshot in use was published, by the wall clock.";
    SNAPSHOT_DEGRADED: Gauge "ilb_snapshot_degraded" []
        "1 while the plan sheds demand because no legal weights can carry all of it.";
    PLAN_LATENCY: Gauge "ilb_plan_expected_latency_seconds" [] "Mean end-to-end latency that the plan expects.";
    PLAN_CAPACITY: Gauge "ilb_plan_engine_capacity_requests_per_second" ["engine"]
        "Load that the plan allows an engine, in requests of the kind that its profile was measured with.";
    PLAN_LOAD: Gauge "ilb_plan_engine_load_requests_per_second" ["engine"]
        "Load that the plan gives an engine, in requests of the kind that its profile was measured with.";
    PLAN_ORDER: Gauge "ilb_plan_engine_order" ["engine", "order"]
        "1 for each engine that an operator has drained or ejected; the label says which.";
    PLAN_WEIGHT: Gauge "ilb_plan_weight_ratio" ["cluster", "class", "engine"]
        "Share of the requests of a class in a cluster that the plan sends to an engine.";
    PLAN_SHED: Gauge "ilb_plan_shed_ratio" ["cluster", "class"]
        "Share of the requests of a class in a cluster that the plan sheds (refuses).";

    CONTROL_LEADS: Gauge "ilb_control_leads" [] "1 while this controller publishes plans, 0 while it stands by for another one.";
    CONTROL_TRIAL: Gauge "ilb_control_trial" [] "1 while a new plan is on trial in the canary cluster.";
    CONTROL_PLANS: Counter "ilb_control_plans_total" [] "Plans made, published or not.";
    CONTROL_PUBLISHED: Counter "ilb_control_published_total" [] "Plans published.";
    CONTROL_FAILURES: Counter "ilb_control_failures_total" [] "Plans that failed. The previous weights stay in use each time.";
    CONTROL_DURATION: Gauge "ilb_control_plan_seconds" [] "Time that the last plan took to make.";
    CONTROL_ANOMALIES: Gauge "ilb_control_anomalies" []
        "Measurements that the controller does not believe at present; `ilb status` lists them.";
    CONTROL_DEMAND: Gauge "ilb_control_demand_requests_per_second" ["cluster", "class"]
        "Demand of a class in a cluster as the controller estimates it now.";
    CONTROL_READY: Gauge "ilb_control_engine_ready" ["engine"] "1 while an engine passes its health probe.";
    CONTROL_DRIFT: Gauge "ilb_control_engine_drift_ratio" ["engine"]
        "Measured time in an engine over the time that its profile predicts; absent while the two agree.";
    CONTROL_REPLICAS: Gauge "ilb_control_engine_ready_replicas" ["engine"]
        "Ready replicas that an engine reports; absent if it reports none.";
    CONTROL_RUNNING: Gauge "ilb_control_engine_running" ["engine"] "Requests that an engine reports as running.";
    CONTROL_WAITING: Gauge "ilb_control_engine_waiting" ["engine"] "Requests that an engine reports as waiting in its queue.";
    CONTROL_KV: Gauge "ilb_control_engine_kv_usage_ratio" ["engine"] "Share of its KV cache that an engine reports as used.";

    PROXY_SILENCE: Gauge "ilb_proxy_controller_silence_seconds" [] "Time since this data plane last heard of a live controller.";
    PROXY_PLAN_SHARE: Gauge "ilb_proxy_plan_share_ratio" []
        "Share of the weights that still follows the plan: 1, or less once the controller has been silent for store.stale_after.";
    PROXY_FAILOVER: Gauge "ilb_proxy_failover" ["engine"]
        "1 for each engine that this data plane cannot reach and whose failover weights are in use.";
    PROXY_CONNECTIONS: Gauge "ilb_proxy_connections" [] "Open client connections.";
    PROXY_REQUESTS: Counter "ilb_proxy_requests_total" ["outcome"] "Requests by outcome. Each request counts once.";
    PROXY_RETRIES: Counter "ilb_proxy_retries_total" ["reason"] "Times that a request was sent to an engine again, by reason.";
    PROXY_RETRIES_DENIED: Counter "ilb_proxy_retries_denied_total" [] "Retries that the retry budget did not allow.";
    PROXY_STORED_IDS: Gauge "ilb_proxy_stored_ids" []
        "Stored objects (responses, files, batches) whose engine this data plane knows.";
    PROXY_STORED_IDS_EVICTED: Counter "ilb_proxy_stored_ids_evicted_total" []
        "Ids of stored objects that were forgotten before their age because proxy.max_stored_ids was reached.";
    PROXY_CLIENT_RETRIES: Counter "ilb_proxy_client_retries_total" []
        "Requests that their clients sent again after a failure, told by their own word, an idempotency key or the same body.";
    PROXY_WAITING: Gauge "ilb_proxy_queue_length" ["priority"]
        "Requests that wait because no engine has room for them, by priority (0 first, 3 last).";
    PROXY_QUEUE_WAIT: Histogram "ilb_proxy_queue_wait_seconds" []
        "Time that a request waited before an engine had room for it; those that did not wait are not counted.";
    PROXY_REFUSALS: Counter "ilb_proxy_queue_refusals_total" ["reason", "priority"]
        "Requests that the queue refused, by reason and priority.";
    PROXY_LIMIT: Gauge "ilb_proxy_engine_waiting_limit" ["engine"]
        "Requests that may wait for their first token at an engine that is full; absent while it is not.";
    PROXY_ARRIVALS: Counter "ilb_proxy_arrivals_total" ["class"] "Requests that arrived, by class, shed ones included and retries not.";
    PROXY_SPILLS: Counter "ilb_proxy_spills_total" ["class"]
        "Picks that went past an engine because it had more than its share of the requests in flight.";
    PROXY_PICKS: Counter "ilb_proxy_picks_total" ["class", "engine"] "Times that an engine was picked for a request, retries included.";
    ENGINE_IN_FLIGHT: Gauge "ilb_proxy_engine_in_flight" ["engine"] "Requests in flight to an engine.";
    ENGINE_DOWN: Gauge "ilb_proxy_engine_down" ["engine"]
        "1 while this data plane has an engine ejected: it is picked only for tests, or when no other is left.";
    ENGINE_PENALTY: Gauge "ilb_proxy_engine_penalty_ratio" ["engine", "reason"]
        "Part of its share of requests that an engine has lost at this data plane, and why.";
    ENGINE_FAILURES: Counter "ilb_proxy_engine_failures_total" ["engine", "reason"]
        "Requests that failed at an engine, by how; a request that fails at two engines counts at both.";
    ENGINE_CONNECT_FAILURES: Counter "ilb_proxy_engine_connect_failures_total" ["engine"] "Connections to an engine that failed.";
    ENGINE_RESETS: Counter "ilb_proxy_engine_resets_total" ["engine"] "Connections that an engine closed before it answered.";
    ENGINE_BROKEN: Counter "ilb_proxy_engine_broken_streams_total" ["engine"] "Answers that broke off after they had begun.";
    ENGINE_RESPONSES: Counter "ilb_proxy_engine_responses_total" ["engine", "code"] "Answers of an engine, by class of the HTTP status.";
    ENGINE_TTFT: Histogram "ilb_proxy_engine_ttft_seconds" ["engine"]
        "Time to first token (TTFT): from sending a request to the first byte of the answer's body.";
    ENGINE_ITL: Histogram "ilb_proxy_engine_itl_seconds" ["engine"]
        "Time between tokens (TBOT = ITL = TPOT): between two events of a stream; events that one read brings share its time.";
    ENGINE_E2E: Histogram "ilb_proxy_engine_e2e_seconds" ["engine"]
        "End-to-end latency: from sending a request to the last byte of a whole answer.";
    ENGINE_EVENTS: Counter "ilb_proxy_engine_events_total" ["engine"] "Server-sent events in answers of an engine.";
    ENGINE_BYTES: Counter "ilb_proxy_engine_response_bytes_total" ["engine"] "Bytes of answers' bodies, with their framing.";

    KERNEL_GENERATION: Gauge "ilb_kernel_generation" [] "Generation of the table that the kernel uses: epoch x 2^32 + count.";
    KERNEL_OUTCOMES: Counter "ilb_kernel_outcomes_total" ["outcome"]
        "Connections and listeners by what the kernel programs did with them.";
    KERNEL_PICKS: Counter "ilb_kernel_engine_picks_total" ["address"] "Connections that the kernel gave to an engine's listener.";
}
