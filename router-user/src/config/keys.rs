//! Every key of the file, table by table, with its form, its default and the reason for it.
//!
//! docs/configuration.md is this list; the reader takes forms and defaults from it.

use std::time::Duration;

use super::key::Form::{self, Address, AddressOrOff, Addresses, Flag, Knots, Name, Number, Seconds, Text, Whole};
use super::key::Preset::{self, Derived, Nothing, Required};
use super::key::Range::{AboveZero, BelowOne, FromOne, FromZero, UpToOne};
use super::key::{Key, Table};
use crate::plan::MOVE_LIMIT_FRAC;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const MONTH: Duration = Duration::from_secs(30 * 86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Round-trip time within a region, in ms, where the file does not say: a packet between two racks
/// of one site and back, with a loaded switch or two on the way.
pub(super) const RTT_WITHIN_REGION_MS: f64 = 1.0;
/// Price of a moved request, in ms, where nothing is known of its cached prompt: a prefill of a
/// thousand tokens that one request in ten would have found in a cache, at 20,000 tokens/s.
pub(super) const MOVE_PRICE_MS: f64 = 5.0;

pub(super) mod cluster {
    use super::*;

    pub(crate) const NAME: Key = Key::new("name", Name, Required, "Name of the cluster; no two clusters share one.");
    pub(crate) const REGION: Key =
        Key::new("region", Text("the name of a region"), Required, "Region whose distances the cluster has.");
    pub(crate) const DEMAND_RPS: Key = Key::new(
        "demand_rps",
        Form::NumberMap(FromZero, "requests/s"),
        Nothing("no demand"),
        "Demand by class. A running controller plans for it until data planes have reported their own.",
    );
    pub(crate) const DETOUR_BUDGET_MS: Key = Key::new(
        "detour_budget_ms",
        Number(AboveZero, "ms"),
        Nothing("no budget"),
        "Largest mean round-trip time of the cluster's requests, unless keeping it would shed some.",
    );
    pub(crate) const TABLE: Table = Table {
        name: "cluster",
        heading: "[[cluster]]",
        meaning: "A front-end cluster, where requests enter. At least one, at most 1,000.",
        keys: &[&NAME, &REGION, &DEMAND_RPS, &DETOUR_BUDGET_MS],
    };
}

pub(super) mod engine {
    use super::*;

    pub(crate) const NAME: Key = Key::new("name", Name, Required, "Name of the engine; no two engines share one.");
    pub(crate) const REGION: Key =
        Key::new("region", Text("the name of a region"), Required, "Region in which the engine stands.");
    pub(crate) const ADDRESS: Key =
        Key::new("address", Address, Required, "Where the engine serves plain HTTP/1.1; no two engines share an address.");
    pub(crate) const MODELS: Key =
        Key::new("models", Form::Texts, Required, "Names of the models it serves, as requests name them.");
    pub(crate) const PROFILE: Key = Key::new(
        "profile",
        Text("the NAME of a [profile.NAME] table"),
        Required,
        "Latency profile of the engine, all replicas together.",
    );
    pub(crate) const REPLICAS: Key = Key::new(
        "replicas",
        Whole(1, 10_000, "replicas"),
        Preset::Whole(1),
        "Identical replicas behind the address. With fewer of them ready, the capacity falls in proportion.",
    );
    pub(crate) const TAGS: Key = Key::new(
        "tags",
        Form::TextMap,
        Nothing("no tags"),
        "Properties that classes and requests may require, such as residency.",
    );
    pub(crate) const TABLE: Table = Table {
        name: "engine",
        heading: "[[engine]]",
        meaning: "An inference server, or identical replicas behind one address. At least one, at most 4,096.",
        keys: &[&NAME, &REGION, &ADDRESS, &MODELS, &PROFILE, &REPLICAS, &TAGS],
    };
}

pub(super) mod class {
    use super::*;

    pub(crate) const NAME: Key = Key::new("name", Name, Required, "Name of the class; no two classes share one.");
    pub(crate) const MODEL: Key =
        Key::new("model", Text("the name of a model"), Required, "Model that requests of this class name.");
    pub(crate) const PROMPT_TOKENS: Key = Key::new(
        "prompt_tokens",
        Number(FromZero, "tokens"),
        Preset::Number(0.0),
        "Mean length of a prompt, cached part included; 0 means unknown.",
    );
    pub(crate) const OUTPUT_TOKENS: Key =
        Key::new("output_tokens", Number(FromZero, "tokens"), Required, "Mean length of an output.");
    pub(crate) const HIT_SHARE: Key = Key::new(
        "hit_share",
        Number(BelowOne, ""),
        Preset::Number(0.0),
        "Share of the prompt found in the cache of the engine that served the conversation before.",
    );
    pub(crate) const WORK: Key = Key::new(
        "work",
        Number(AboveZero, "reference requests"),
        Derived("computed from prompt_tokens, output_tokens, hit_share and the profiles' work; 1 where those are unknown"),
        "Load that one request is, in requests of the kind that the profiles were measured with.",
    );
    pub(crate) const TTFT_WEIGHT: Key = Key::new(
        "ttft_weight",
        Number(FromZero, "times"),
        Preset::Number(1.0),
        "Weight of a millisecond before the first token in the latency that plans minimise.",
    );
    pub(crate) const DECODE_WEIGHT: Key = Key::new(
        "decode_weight",
        Number(FromZero, "times"),
        Preset::Number(1.0),
        "Weight of a millisecond of decoding in the latency that plans minimise.",
    );
    pub(crate) const RTT_CAP_MS: Key = Key::new(
        "rtt_cap_ms",
        Number(AboveZero, "ms"),
        Nothing("no cap"),
        "Largest round-trip time to an engine; farther engines are not eligible, even if requests are shed for it.",
    );
    pub(crate) const PRIORITY: Key = Key::new(
        "priority",
        Whole(0, 255, "places"),
        Preset::Whole(0),
        "Order in which classes are served when capacity is short: 0 first. A class is shed before any of a lower number.",
    );
    pub(crate) const TTFT_BUDGET_MS: Key = Key::new(
        "ttft_budget_ms",
        Number(AboveZero, "ms"),
        Preset::Number(10_000.0),
        "Time to the first token that clients accept. While the engines are full, a request that cannot have it is refused at once.",
    )
    .because("About as long as a person waits without a sign.");
    pub(crate) const REQUIRE: Key =
        Key::new("require", Form::TextMap, Nothing("no requirement"), "Tags that an engine must have to serve this class.");
    pub(crate) const MOVE_PRICE_MS: Key = Key::new(
        "move_price_ms",
        Number(FromZero, "ms"),
        Derived("the cached prefill that a moved request loses on the slowest eligible engine; 5 where that is unknown"),
        "Cost of moving a request to another engine, which keeps plans from moving traffic for a gain below it.",
    )
    .because("5 ms: a prefill of a thousand tokens that one request in ten would have found in a cache, at 20,000 tokens/s.");
    pub(crate) const TABLE: Table = Table {
        name: "class",
        heading: "[[class]]",
        meaning: "Requests that are interchangeable for routing. At least one, at most 256.",
        keys: &[
            &NAME,
            &MODEL,
            &PROMPT_TOKENS,
            &OUTPUT_TOKENS,
            &HIT_SHARE,
            &WORK,
            &TTFT_WEIGHT,
            &DECODE_WEIGHT,
            &RTT_CAP_MS,
            &PRIORITY,
            &TTFT_BUDGET_MS,
            &REQUIRE,
            &MOVE_PRICE_MS,
        ],
    };
}

pub(super) mod profile {
    use super::*;

    pub(crate) const CAPACITY_RPS: Key =
        Key::new("capacity_rps", Number(AboveZero, "requests/s"), Required, "Load at which all replicas together are full.");
    pub(crate) const TTFT_MS: Key = Key::new(
        "ttft_ms",
        Knots,
        Required,
        "Mean time to the first token by load: convex, never falling, from load 0; the last slope goes on.",
    );
    pub(crate) const TBOT_MS: Key =
        Key::new("tbot_ms", Knots, Required, "Mean time between two output tokens by load, in the same form.");
    pub(crate) const KV_TOKENS: Key = Key::new(
        "kv_tokens",
        Number(AboveZero, "tokens"),
        Nothing("memory is no limit"),
        "Tokens that the KV cache holds, all replicas together: a second limit on load.",
    );
    pub(crate) const WORK: Key =
        Key::new("work", Form::Table, Nothing("every request is one reference request"), "Time of an iteration; see below.");
    pub(crate) const TABLE: Table = Table {
        name: "profile",
        heading: "[profile.NAME]",
        meaning: "How latency of one kind of engine grows with load. `ilb profile fit` and `ilb profile derive` write these tables.",
        keys: &[&CAPACITY_RPS, &TTFT_MS, &TBOT_MS, &KV_TOKENS, &WORK],
    };
}

pub(super) mod work {
    use super::*;

    pub(crate) const BASE_MS: Key =
        Key::new("base_ms", Number(FromZero, "ms"), Required, "Time of an iteration whatever its batch holds.");
    pub(crate) const PROMPT_TOKEN_MS: Key = Key::new(
        "prompt_token_ms",
        Number(AboveZero, "ms"),
        Required,
        "Time that an uncached prompt token adds to an iteration.",
    );
    pub(crate) const SEQUENCE_MS: Key =
        Key::new("sequence_ms", Number(AboveZero, "ms"), Required, "Time that a sequence in the batch adds to an iteration.");
    pub(crate) const MAX_BATCH: Key =
        Key::new("max_batch", Number(AboveZero, "sequences"), Required, "Largest number of sequences in a batch.");
    pub(crate) const PROMPT_TOKENS: Key = Key::new(
        "prompt_tokens",
        Number(AboveZero, "tokens"),
        Required,
        "Uncached prompt tokens of the requests that the profile was measured with.",
    );
    pub(crate) const OUTPUT_TOKENS: Key = Key::new(
        "output_tokens",
        Number(AboveZero, "tokens"),
        Required,
        "Output tokens of the requests that the profile was measured with.",
    );
    pub(crate) const TABLE: Table = Table {
        name: "work",
        heading: "[profile.NAME.work]",
        meaning: "The time of one iteration, from which the work of each class follows.",
        keys: &[&BASE_MS, &PROMPT_TOKEN_MS, &SEQUENCE_MS, &MAX_BATCH, &PROMPT_TOKENS, &OUTPUT_TOKENS],
    };
}

pub(super) mod rtt {
    use super::*;

    /// Stands for every key of the table, which are names of regions.
    pub(crate) const REGION: Key = Key::new(
        "ENGINE_REGION",
        Number(FromZero, "ms"),
        Derived("1 within a region; required between two regions with a cluster in the first and an engine in the second"),
        "Round-trip time from clusters of CLUSTER_REGION to engines of ENGINE_REGION.",
    )
    .because("1 ms: a packet between two racks of one site and back, with a loaded switch or two on the way.");
    pub(crate) const TABLE: Table =
        Table { name: "rtt_ms", heading: "[rtt_ms.CLUSTER_REGION]", meaning: "Distances between regions.", keys: &[&REGION] };
}

pub(super) mod proxy {
    use super::*;

    pub(crate) const LISTEN: Key =
        Key::new("listen", Addresses, Preset::Text("127.0.0.1:8080"), "Where clients connect; `--listen` overrides it.")
            .because("Only this machine, until somebody decides who may reach the proxy.");
    pub(crate) const WORKERS: Key =
        Key::new("workers", Whole(0, 256, "threads"), Preset::Whole(1), "Worker threads; 0 starts one per core.")
            .because("One carries some 70,000 requests/s; on a small host the other cores are the engines'.");
    pub(crate) const MAX_CONNECTIONS: Key = Key::new(
        "max_connections",
        Whole(1, 1_000_000, "connections"),
        Preset::Whole(8_192),
        "Client connections of one worker. For one more the longest idle one is closed. While none is idle, \
         `/healthz` and `/readyz` are answered and all else is refused with 503 `overloaded`, on 8 connections more.",
    )
    .because("Two descriptors for each fit the usual limit of 20,000 open files.");
    pub(crate) const MAX_HEAD_BYTES: Key = Key::new(
        "max_head_bytes",
        Whole(1_024, 1 << 20, "bytes"),
        Preset::Whole(64 << 10),
        "Bytes of a request's head, its first line included; more is answered 431.",
    )
    .because("nginx allows 32 KiB; long cookies and tokens need more.");
    pub(crate) const MAX_HEAD_FIELDS: Key = Key::new(
        "max_head_fields",
        Whole(1, 256, "fields"),
        Preset::Whole(128),
        "Fields of a request's head; more is answered 431.",
    )
    .because("Clients behind several proxies send some forty.");
    pub(crate) const MAX_BODY_BYTES: Key = Key::new(
        "max_body_bytes",
        Whole(1, 1 << 30, "bytes"),
        Preset::Whole(32 << 20),
        "Bytes of a request's body; more is answered 413. A body is kept until the answer begins, so that it can be sent again.",
    )
    .because("A long prompt with some images in base64 fits.");
    pub(crate) const MAX_BODIES_BYTES: Key = Key::new(
        "max_bodies_bytes",
        Whole(1, 1 << 40, "bytes"),
        Preset::Whole(1 << 30),
        "Bytes of all bodies that one worker holds at a time, counted as they arrive. When they are used up, the body that stalled \
         longest is answered 503, or the newcomer if none has stalled.",
    )
    .because("32 bodies of the largest size, or a hundred thousand usual prompts.");
    pub(crate) const MAX_IN_FLIGHT_PER_ENGINE: Key = Key::new(
        "max_in_flight_per_engine",
        Whole(1, 1_000_000, "requests"),
        Preset::Whole(512),
        "Requests in flight to one engine, times the workers; more go to the next engine of their slot.",
    )
    .because("More would only queue in the engine: vLLM runs 256 sequences by default, and twice that keeps its batch full.");
    pub(crate) const MAX_WAITING: Key = Key::new(
        "max_waiting",
        Whole(0, 1_000_000, "requests"),
        Preset::Whole(1_024),
        "Requests of all workers that may wait while the engines are full; 0 turns the queue off, and requests are refused instead.",
    )
    .because("Ten seconds of a fleet that serves a hundred requests/s; what waits longer is refused anyway.");
    pub(crate) const MAX_IDLE_PER_ENGINE: Key = Key::new(
        "max_idle_per_engine",
        Whole(0, 1_000_000, "connections"),
        Preset::Whole(256),
        "Idle connections of one worker that are kept to one engine.",
    )
    .because("As many as requests usually run at once in an engine.");
    pub(crate) const MAX_ATTEMPTS: Key = Key::new(
        "max_attempts",
        Whole(1, 64, "engines"),
        Preset::Whole(4),
        "Engines that one request may be sent to, the first included.",
    )
    .because("When three engines in a row have failed, the fourth rarely is the remedy.");
    pub(crate) const LOAD_FACTOR: Key = Key::new(
        "load_factor",
        Number(FromOne, "shares"),
        Preset::Number(1.25),
        "Requests of a class that one engine may have in flight, as a multiple of its share of all of them. What is more goes to \
         the next engine of its slot, so that no key fills one engine while others idle; nothing is refused for it. The first few \
         requests (2 to 8, by the engine's capacity) always stay. A large factor keeps all requests of a key together.",
    )
    .because("Balance within a quarter; with a factor nearer to 1 many conversations would leave their caches behind.");
    pub(crate) const CONNECT_TIMEOUT: Key = Key::new(
        "connect_timeout",
        Form::Duration(MS, MINUTE),
        Preset::Duration(SECOND),
        "Time in which a connection to an engine must be made.",
    )
    .because("The kernel repeats a lost SYN after 1 s; by then another engine is the better choice.");
    pub(crate) const TTFT_TIMEOUT: Key = Key::new(
        "ttft_timeout",
        Form::Duration(MS, DAY),
        Preset::Duration(HOUR),
        "Time from sending a request to the first byte of the answer's body, or to the first content of an event stream.",
    )
    .because(
        "An answer that is not streamed comes whole, after all of its reasoning. The client's own deadline (600 s in the usual \
         libraries) ends most waits earlier, and keepalive finds an engine that is gone; this ends what only hangs.",
    );
    pub(crate) const GAP_TIMEOUT: Key = Key::new(
        "gap_timeout",
        Form::Duration(MS, DAY),
        Preset::Duration(Duration::from_secs(900)),
        "Time between two reads of an answer.",
    )
    .because("Engines that hide their reasoning send nothing meanwhile; above the 600 s after which the usual clients give up.");
    pub(crate) const CLIENT_IDLE_TIMEOUT: Key = Key::new(
        "client_idle_timeout",
        Form::Duration(MS, DAY),
        Preset::Duration(Duration::from_secs(90)),
        "Time that a client's connection may stay idle between requests.",
    )
    .because("Above the 60 s after which load balancers in front usually close theirs, so that they close first.");
    pub(crate) const HEAD_TIMEOUT: Key = Key::new(
        "head_timeout",
        Form::Duration(MS, HOUR),
        Preset::Duration(Duration::from_secs(10)),
        "Time from the first byte of a request to the end of its head.",
    )
    .because("A head fits a few packets; a client that needs longer holds a connection for nothing.");
    pub(crate) const BODY_GAP_TIMEOUT: Key = Key::new(
        "body_gap_timeout",
        Form::Duration(MS, HOUR),
        Preset::Duration(Duration::from_secs(30)),
        "Time between two reads of a request's body.",
    )
    .because("Long enough for TCP to recover from several lost packets in a row.");
    pub(crate) const MIN_UPLOAD_BYTES_PER_S: Key = Key::new(
        "min_upload_bytes_per_s",
        Whole(0, 1 << 30, "bytes/s"),
        Preset::Whole(1_000),
        "Mean rate at which a request's body must come, after a first `body_gap_timeout`; 0 asks for none.",
    )
    .because("A modem reaches several times that; Apache and Kestrel ask for 240 to 500.");
    pub(crate) const CLIENT_STALL_TIMEOUT: Key = Key::new(
        "client_stall_timeout",
        Form::Duration(MS, HOUR),
        Preset::Duration(MINUTE),
        "Time in which a client must take a part of its answer; what the kernel still buffers does not count as taken.",
    )
    .because("Long enough for a change of networks; a person who waits for an answer reads it sooner.");
    pub(crate) const MIN_DOWNLOAD_BYTES_PER_S: Key = Key::new(
        "min_download_bytes_per_s",
        Whole(0, 1 << 30, "bytes/s"),
        Preset::Whole(500),
        "Rate at which a client must take what waits for it, as a mean over `client_stall_timeout`; 0 asks for none.",
    )
    .because("A stream of 100 tokens/s is about 20,000 bytes/s with its framing; a client 40 times slower is not reading.");
    pub(crate) const ENGINE_IDLE_TIMEOUT: Key = Key::new(
        "engine_idle_timeout",
        Form::Duration(MS, HOUR),
        Preset::Duration(Duration::from_secs(4)),
        "Time that an idle connection to an engine is kept.",
    )
    .because("Below the 5 s after which uvicorn and Node close theirs.");
    pub(crate) const MAX_STORED_IDS: Key = Key::new(
        "max_stored_ids",
        Whole(0, 100_000_000, "ids"),
        Preset::Whole(1_000_000),
        "Ids of stored objects (responses, files, batches) whose engines all workers together remember; the oldest goes first. A \
         request that names an unknown id is answered 404. 0 remembers none and sends such requests to any engine, which is right \
         where the engines share what they store.",
    )
    .because("About 150 MB once they are all there, and almost three hours of 100 responses/s.");
    pub(crate) const STORED_ID_MAX_AGE: Key = Key::new(
        "stored_id_max_age",
        Form::Duration(SECOND, YEAR),
        Preset::Duration(MONTH),
        "Time for which the engine of a stored object is remembered.",
    )
    .because("OpenAI keeps responses for 30 days, and clients are written for that.");
    pub(crate) const TABLE: Table = Table {
        name: "proxy",
        heading: "[proxy]",
        meaning: "Where clients connect, and the bounds of what they may send and wait for.",
        keys: &[
            &LISTEN,
            &WORKERS,
            &MAX_CONNECTIONS,
            &MAX_HEAD_BYTES,
            &MAX_HEAD_FIELDS,
            &MAX_BODY_BYTES,
            &MAX_BODIES_BYTES,
            &MAX_IN_FLIGHT_PER_ENGINE,
            &MAX_WAITING,
            &MAX_IDLE_PER_ENGINE,
            &MAX_ATTEMPTS,
            &LOAD_FACTOR,
            &CONNECT_TIMEOUT,
            &TTFT_TIMEOUT,
            &GAP_TIMEOUT,
            &CLIENT_IDLE_TIMEOUT,
            &HEAD_TIMEOUT,
            &BODY_GAP_TIMEOUT,
            &MIN_UPLOAD_BYTES_PER_S,
            &CLIENT_STALL_TIMEOUT,
            &MIN_DOWNLOAD_BYTES_PER_S,
            &ENGINE_IDLE_TIMEOUT,
            &MAX_STORED_IDS,
            &STORED_ID_MAX_AGE,
        ],
    };
}

pub(super) mod admin {
    use super::*;

    pub(crate) const SOCKET: Key = Key::new(
        "socket",
        Text("a path"),
        Derived("`ilb.sock` in the runtime folder (see Folders)"),
        "Unix socket of the commands that ask a running ilb; only its own user can reach it. `--socket` overrides it.",
    );
    pub(crate) const LISTEN: Key = Key::new(
        "listen",
        AddressOrOff,
        Preset::Text("127.0.0.1:9900"),
        "Where /metrics, /healthz and /readyz are served; `--admin-listen` overrides it.",
    )
    .because("Only this machine, until somebody decides who may read the metrics.");
    pub(crate) const TABLE: Table =
        Table { name: "admin", heading: "[admin]", meaning: "What operators and Prometheus talk to.", keys: &[&SOCKET, &LISTEN] };
}

pub(super) mod control {
    use super::*;

    pub(crate) const PERIOD: Key = Key::new(
        "period",
        Form::Duration(Duration::from_millis(100), HOUR),
        Preset::Duration(Duration::from_secs(2)),
        "Time between two plans. A change of health or a pin is planned at once.",
    )
    .because("Estimates of demand need some seconds of arrivals; faster plans would only follow noise.");
    pub(crate) const LISTEN: Key = Key::new(
        "listen",
        Address,
        Preset::Text("127.0.0.1:9800"),
        "Where data planes of other processes fetch snapshots and report demand; `ilb control --listen` overrides it.",
    )
    .because("Only this machine: the endpoint has no password, and belongs on a network that is trusted.");
    pub(crate) const HEADROOM: Key =
        Key::new("headroom", Number(BelowOne, ""), Preset::Number(0.0), "Fraction of every capacity that plans leave free.");
    pub(crate) const MOVE_LIMIT: Key = Key::new(
        "move_limit",
        Number(UpToOne, ""),
        Preset::Number(MOVE_LIMIT_FRAC),
        "Largest share of the demand that one plan may move while the active weights break no rule.",
    )
    .because("A wrong input then moves a tenth of the traffic before the next plan sees what came of it.");
    pub(crate) const MEASURED_RTT: Key = Key::new(
        "measured_rtt",
        Flag,
        Preset::Flag(false),
        "Whether plans use the distances that data planes measure instead of [rtt_ms].",
    )
    .because("Written distances may mean more than time, such as the price of a link.");
    pub(crate) const HEALTH_PERIOD: Key = Key::new(
        "health_period",
        Form::Duration(Duration::from_millis(100), HOUR),
        Preset::Duration(SECOND),
        "Time between two health probes of an engine.",
    )
    .because("Two failures in a row take an engine out of the plan: 2 s, by when data planes have long stopped using it.");
    pub(crate) const SCRAPE_PERIOD: Key = Key::new(
        "scrape_period",
        Form::DurationOrZero(Duration::from_millis(500), HOUR, "leave engines alone"),
        Preset::Duration(Duration::from_secs(5)),
        "Time between two reads of an engine's own metrics.",
    )
    .because("Some engines stall their event loop over a page of metrics; what they say corrects the plan within a few periods.");
    pub(crate) const CANARY: Key = Key::new(
        "canary",
        Text("the name of a cluster"),
        Nothing("a new plan is for all clusters at once"),
        "Cluster in which a new plan is tried before the others get it.",
    );
    pub(crate) const CANARY_PERIODS: Key =
        Key::new("canary_periods", Whole(1, 1_000, "periods"), Preset::Whole(5), "Length of a trial, in periods.")
            .because("10 s at the default period: enough requests of a busy cluster, and a bad plan does not last.");
    pub(crate) const TABLE: Table = Table {
        name: "control",
        heading: "[control]",
        meaning: "How often to plan, from which inputs, and where data planes reach the controller.",
        keys: &[
            &PERIOD,
            &LISTEN,
            &HEADROOM,
            &MOVE_LIMIT,
            &MEASURED_RTT,
            &HEALTH_PERIOD,
            &SCRAPE_PERIOD,
            &CANARY,
            &CANARY_PERIODS,
        ],
    };
}

pub(super) mod store {
    use super::*;

    pub(crate) const DIR: Key = Key::new(
        "dir",
        Text("a path"),
        Derived("`snapshots` in the state folder (see Folders)"),
        "Folder of snapshots, pins and orders about engines. At most one controller uses a folder.",
    );
    pub(crate) const URL: Key = Key::new(
        "url",
        Form::Url,
        Derived("http:// and `control.listen`"),
        "Where a data plane of another process finds the controller.",
    );
    pub(crate) const ETCD: Key = Key::new(
        "etcd",
        Addresses,
        Nothing("no etcd: one controller, found at `url`"),
        "Addresses of an etcd in which several controllers elect a leader and data planes find its snapshots.",
    );
    pub(crate) const PREFIX: Key =
        Key::new("prefix", Form::EtcdPrefix, Preset::Text("/ilb"), "Path of this fleet's keys in etcd; one per fleet.");
    pub(crate) const LEASE: Key = Key::new(
        "lease",
        Seconds(Duration::from_secs(2), MINUTE),
        Preset::Duration(Duration::from_secs(5)),
        "Time within which a dead leader is replaced.",
    )
    .because("etcd grants no lease below 2 s by default; a pause of a second or two must not cost the lead.");
    pub(crate) const STALE_AFTER: Key = Key::new(
        "stale_after",
        Form::Duration(Duration::from_secs(10), DAY),
        Preset::Duration(Duration::from_secs(600)),
        "Age of a snapshot at which a data plane without a controller begins to replace it by shares of capacity.",
    )
    .because("Demand drifts by more than an optimum is worth within minutes; weights by capacity are then the safer guess.");
    pub(crate) const TABLE: Table = Table {
        name: "store",
        heading: "[store]",
        meaning: "Where snapshots live, and where a data plane fetches them; see stores.md.",
        keys: &[&DIR, &URL, &ETCD, &PREFIX, &LEASE, &STALE_AFTER],
    };
}

pub(super) mod kernel {
    use super::*;

    pub(crate) const ENABLED: Key = Key::new(
        "enabled",
        Flag,
        Preset::Flag(false),
        "Whether to attach the kernel plane; without privileges the proxy goes on alone.",
    )
    .because("It needs root or capabilities, and changes how this host treats connections.");
    pub(crate) const SERVICE: Key = Key::new(
        "service",
        Address,
        Preset::Text("127.0.0.1:8000"),
        "Address whose connections the kernel steers to engines on this host.",
    );
    pub(crate) const CLASS: Key =
        Key::new("class", Text("the name of a class"), Derived("the first class"), "Class whose weights the service follows.");
    pub(crate) const PIN_DIR: Key = Key::new(
        "pin_dir",
        Text("a path"),
        Preset::Text("/sys/fs/bpf/ilb"),
        "Folder in bpffs for maps and links, which outlive the process.",
    );
    pub(crate) const CGROUP: Key = Key::new(
        "cgroup",
        Text("a path"),
        Nothing("the root of the cgroup v2 mount"),
        "Cgroup whose listeners register themselves.",
    );
    pub(crate) const TABLE: Table = Table {
        name: "kernel",
        heading: "[kernel]",
        meaning: "Steering of connections by eBPF, without a proxy on the way.",
        keys: &[&ENABLED, &SERVICE, &CLASS, &PIN_DIR, &CGROUP],
    };
}

/// All tables, in the order of the reference.
pub(super) const TABLES: &[&Table] = &[
    &cluster::TABLE,
    &engine::TABLE,
    &class::TABLE,
    &profile::TABLE,
    &work::TABLE,
    &rtt::TABLE,
    &proxy::TABLE,
    &admin::TABLE,
    &control::TABLE,
    &store::TABLE,
    &kernel::TABLE,
];
