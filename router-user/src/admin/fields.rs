//! The fields of the JSON answers of the admin socket. docs/admin.md is made from these tables, and
//! a test compares them with the answers of a running process.

/// One field of an answer.
#[derive(Debug)]
pub struct Field {
    /// Names from the outermost on; `[]` stands for the items of a list.
    pub path: &'static str,
    /// The type, or the unit of a number.
    pub unit: &'static str,
    pub meaning: &'static str,
}

/// The fields of one endpoint's answer.
#[derive(Debug)]
pub struct Answer {
    /// Path of the endpoint, which answers GET.
    pub path: &'static str,
    pub fields: &'static [Field],
}

macro_rules! answers {
    ($($path:literal { $($field:literal $unit:literal $meaning:literal;)* })*) => {
        pub static ANSWERS: &[Answer] = &[$(Answer {
            path: $path,
            fields: &[$(Field { path: $field, unit: $unit, meaning: $meaning }),*],
        }),*];
    };
}

answers! {
    "/v1/status" {
        "version" "text" "version of ilb";
        "uptime_s" "s" "time since the start";
        "ready" "text" "`yes`, or `no: ` and the reason, as `/readyz` says it";
        "generation" "text" "generation in use, `EPOCH.COUNT`";
        "snapshot_age_s" "s" "time since that snapshot was published, by the wall clock";
        "status" "text" "`optimal`; `degraded` where some demand is shed or an engine overfull";
        "objective_ms" "ms" "expected mean latency that the plan was published with";
        "control" "object" "the control plane; null in a process without one";
        "control.standby_reason" "text" "why another controller publishes; null while this one does";
        "control.plans" "plans" "plans made since the start";
        "control.published" "plans" "those that were published";
        "control.failures" "plans" "those that failed; the weights stayed";
        "control.last_decision" "text" "why the last plan was published, kept back or failed";
        "control.last_plan_ms" "ms" "time that the last plan took";
        "control.expected_ms" "ms" "expected mean latency under the present weights and inputs";
        "control.regions" "list" "each region's loss, as it was when the weights were published";
        "control.regions[].region" "text" "the region that would be lost";
        "control.regions[].demand_rps" "requests/s" "demand of the whole fleet";
        "control.regions[].shortfall_rps" "requests/s" "demand that would have to be shed";
        "control.regions[].spare_frac" "share" "growth of all demand that the rest could carry; below 0 where it cannot carry the present";
        "control.clusters" "list" "demand by cluster";
        "control.clusters[].cluster" "text" "name of the cluster";
        "control.clusters[].measured" "boolean" "false while configured or published demand stands in";
        "control.clusters[].freshness" "text" "`fresh`, `late`, `stale`, `published` or `configured`";
        "control.clusters[].demand_rps" "pairs" "class, and its demand in requests/s";
        "control.engines" "list" "the controller's view of each engine";
        "control.engines[].engine" "text" "name of the engine";
        "control.engines[].ready" "boolean" "it passes its health probe";
        "control.engines[].profile" "text" "name of its profile";
        "control.engines[].ready_replicas" "replicas" "replicas that are planned with, by the engine's metrics; null where it gives none";
        "control.engines[].signals" "object" "as `signals` of `GET /v1/engines`";
        "control.engines[].signals_at_s" "s" "when they were read, since the control plane's start";
        "control.engines[].signals_error" "text" "why the last scrape failed";
        "control.engines[].drift" "object" "deviation from the profile; null where there is none";
        "control.engines[].drift.ratio" "ratio" "time in the engine over the profile's at the same load";
        "control.engines[].drift.since_s" "s" "how long it has deviated";
        "control.engines[].present" "object" "load and latency under the weights in use; null before the first plan";
        "control.engines[].present.capacity_rps" "requests/s" "load that it may be given, in requests of its profile";
        "control.engines[].present.load_rps" "requests/s" "its load under the weights, in the same requests";
        "control.engines[].present.latency_ms" "ms" "expected mean time of a request in it at that load";
        "control.engines[].order" "object" "an operator's last order about it; null where there is none";
        "control.engines[].order.kind" "text" "`drain`, `eject` or `restore`";
        "control.engines[].order.by" "text" "who gave it";
        "control.engines[].order.reason" "text" "why; left out where none was given";
        "control.engines[].order.since_unix_ms" "ms" "when it was given, since the Unix epoch";
        "control.engines[].order.until_unix_ms" "ms" "when it expires, since the Unix epoch; left out where it does not";
        "control.trial" "text" "the trial that a new plan is on in the canary's cluster";
        "control.anomalies" "list" "measurements that are late, impossible or contradictory";
        "control.anomalies[].subject" "text" "whose measurement, such as `engine e2`";
        "control.anomalies[].detail" "text" "its fault, and the effect on the plan";
        "proxy" "object" "the data plane; null in a process without one";
        "proxy.cluster" "text" "cluster of the data plane";
        "proxy.listen" "list" "addresses at which clients connect";
        "proxy.io" "text" "IO driver in use, `uring` or `epoll`";
        "proxy.outcomes" "pairs" "outcome, and how many requests ended so since the start";
        "proxy.retries" "pairs" "reason, and how many requests were sent once more for it";
        "proxy.controller_error" "text" "last failure to reach the controller, while it lasts";
        "proxy.not_addressed" "text" "a newer generation that is not for this cluster";
        "proxy.failover" "list" "engines whose failover weights are in use";
        "proxy.waiting" "list" "requests that wait because no engine has room for them, by priority";
        "proxy.full_engines" "pairs" "engine that is full, and how many requests may wait there for their first token";
        "proxy.plan_share" "share" "share of the plan that still counts; below 1 once the controller is silent for `store.stale_after`";
        "kernel" "object" "as `ilb kernel status --json`; null without a kernel plane";
        "kernel_error" "text" "why there is no kernel plane although it is enabled";
    }
    "/v1/engines" {
        "[].engine" "text" "name of the engine";
        "[].region" "text" "its region";
        "[].address" "text" "its address, `IP:PORT`";
        "[].profile" "text" "name of its profile; null without a controller in this process";
        "[].capacity_rps" "requests/s" "load that it may be given; with the next three, of the present where a controller runs, else of the snapshot";
        "[].load_rps" "requests/s" "load under the weights in use";
        "[].utilisation" "share" "load over capacity";
        "[].latency_ms" "ms" "expected mean time of a request in it at that load";
        "[].price_ms" "ms" "marginal cost of one more request, by the snapshot";
        "[].ready" "boolean" "it passes its health probe; null without a controller in this process";
        "[].ready_replicas" "replicas" "replicas that are planned with, by the engine's metrics";
        "[].signals" "object" "the engine's own metrics; null where none were read";
        "[].signals.family" "text" "software of the engine, such as `vllm`";
        "[].signals.running" "requests" "requests in the batch";
        "[].signals.waiting" "requests" "requests in the engine's queue";
        "[].signals.kv_usage_frac" "share" "share of the KV cache in use";
        "[].signals.ready_replicas" "replicas" "live replicas, as counted by a router in front of them";
        "[].signals.ranks" "ranks" "data-parallel ranks or replicas that report one by one";
        "[].signals.prefix" "object" "`queries` and `hits` of the prefix cache, in the engine's unit; both only grow";
        "[].signals.ttft" "object" "`sum_s` and `count` of times to the first token; both only grow";
        "[].signals.itl" "object" "`sum_s` and `count` of times between tokens";
        "[].signals.e2e" "object" "`sum_s` and `count` of times from arrival to the end";
        "[].signals_at_s" "s" "when they were read, since the control plane's start";
        "[].signals_error" "text" "why the last scrape failed";
        "[].order" "object" "an operator's last order about it; null where there is none";
        "[].order.kind" "text" "`drain`, `eject` or `restore`";
        "[].order.by" "text" "who gave it";
        "[].order.reason" "text" "why; left out where none was given";
        "[].order.since_unix_ms" "ms" "when it was given, since the Unix epoch";
        "[].order.until_unix_ms" "ms" "when it expires, since the Unix epoch; left out where it does not";
        "[].live" "object" "what this process's data plane sees of it since its start; null without one";
        "[].live.in_flight" "requests" "requests that wait for it or are being answered";
        "[].live.picks" "requests" "requests that were sent to it";
        "[].live.failures" "requests" "requests that failed there";
        "[].live.ttft_ms" "ms" "mean time to the first content";
        "[].live.itl_ms" "ms" "mean time between two events of a stream";
        "[].live.latency_ms" "ms" "mean time from the request to the end of its answer";
        "[].live.available" "boolean" "false while its failures keep requests from it";
        "[].live.state" "text" "judgement: `healthy`, `ejected`, `half_open` (a request tests it) or `ramp` (its share grows back); by an operator `drained` or `ejected_by_operator`";
        "[].live.multiplier" "share" "factor on its share of requests, 0 to 1";
        "[].live.reason" "text" "how the last request that counted failed, such as `server_error`; null while it has its whole share";
        "[].live.ttft_ms_sum" "ms" "sum behind `ttft_ms`";
        "[].live.ttft_count" "answers" "count behind `ttft_ms`";
        "[].live.itl_ms_sum" "ms" "sum behind `itl_ms`";
        "[].live.itl_count" "gaps" "count behind `itl_ms`";
        "[].live.latency_ms_sum" "ms" "sum behind `latency_ms`";
        "[].live.latency_count" "answers" "count behind `latency_ms`";
        "[].live.events" "events" "events of event streams";
    }
    "/v1/weights" {
        "generation" "text" "generation in use, `EPOCH.COUNT`";
        "failover" "list" "engines whose failover weights the routes of this process's cluster have";
        "routes" "list" "one entry per cluster and class";
        "routes[].cluster" "text" "name of the cluster";
        "routes[].class" "text" "name of the class";
        "routes[].demand_rps" "requests/s" "demand that the plan was made for";
        "routes[].present_demand_rps" "requests/s" "the controller's present estimate; null without one in this process";
        "routes[].shed_frac" "share" "share of the demand that is planned to be refused";
        "routes[].pinned" "boolean" "the weights were set by an operator";
        "routes[].weights" "list" "the engines that get some of it";
        "routes[].weights[].engine" "text" "name of the engine";
        "routes[].weights[].weight" "share" "share of the demand that goes there";
        "routes[].weights[].picks" "requests" "requests that this process sent there; null for other clusters";
    }
    "/v1/snapshots" {
        "[].generation" "text" "its generation, `EPOCH.COUNT`; the newest comes first";
        "[].is_current" "boolean" "it is in use";
        "[].age_s" "s" "time since it was published, by the wall clock";
        "[].status" "text" "as in `GET /v1/status`; null, as what follows, where the file is damaged";
        "[].objective_ms" "ms" "expected mean latency that it was published with";
        "[].reason" "text" "why it was published";
        "[].target_clusters" "list" "clusters that it is for; empty means all";
        "[].error" "text" "why it cannot be read";
        "[].moved" "object" "changes against the one before it; null for the oldest";
        "[].moved.moved_frac" "share" "share of the fleet's demand that goes elsewhere";
        "[].moved.moves" "list" "changed weights, the largest change in requests/s first";
        "[].moved.moves[].cluster" "text" "name of the cluster";
        "[].moved.moves[].class" "text" "name of the class";
        "[].moved.moves[].engine" "text" "name of the engine; null for the share that is refused";
        "[].moved.moves[].before" "share" "weight before";
        "[].moved.moves[].after" "share" "weight after";
    }
}
