//! What the file says, key by key, before anything is checked against anything else.

use std::net::SocketAddr;
use std::time::Duration;

use super::reader::{ADDRESS, At, KNOTS, Place, Reader, Section};

pub(super) struct Raw {
    pub(super) clusters: Vec<RawCluster>,
    pub(super) engines: Vec<RawEngine>,
    pub(super) classes: Vec<RawClass>,
    pub(super) profiles: Vec<RawProfile>,
    pub(super) rtt_ms: Vec<RawRtt>,
    pub(super) proxy: RawProxy,
    pub(super) admin: RawAdmin,
    pub(super) control: RawControl,
    pub(super) store: RawStore,
    pub(super) kernel: RawKernel,
}

pub(super) struct RawCluster {
    pub(super) name: Option<At<String>>,
    pub(super) region: Option<At<String>>,
    pub(super) demand_rps: Vec<(String, At<f64>)>,
    pub(super) detour_budget_ms: Option<At<f64>>,
}

pub(super) struct RawEngine {
    pub(super) name: Option<At<String>>,
    pub(super) region: Option<At<String>>,
    pub(super) address: Option<At<SocketAddr>>,
    pub(super) models: Option<At<Vec<String>>>,
    pub(super) profile: Option<At<String>>,
    pub(super) replicas: Option<At<u64>>,
    pub(super) tags: Vec<(String, At<String>)>,
}

pub(super) struct RawClass {
    pub(super) place: Place,
    pub(super) name: Option<At<String>>,
    pub(super) model: Option<At<String>>,
    pub(super) prompt_tokens: Option<At<f64>>,
    pub(super) output_tokens: Option<At<f64>>,
    pub(super) hit_share: Option<At<f64>>,
    pub(super) work: Option<At<f64>>,
    pub(super) ttft_weight: Option<At<f64>>,
    pub(super) decode_weight: Option<At<f64>>,
    pub(super) rtt_cap_ms: Option<At<f64>>,
    pub(super) priority: Option<At<u64>>,
    pub(super) require: Vec<(String, At<String>)>,
    pub(super) move_price_ms: Option<At<f64>>,
}

pub(super) struct RawProfile {
    pub(super) name: At<String>,
    pub(super) capacity_rps: Option<At<f64>>,
    pub(super) ttft_ms: Option<At<Vec<(f64, f64)>>>,
    pub(super) tbot_ms: Option<At<Vec<(f64, f64)>>>,
    pub(super) kv_tokens: Option<At<f64>>,
    pub(super) work: Option<RawLaw>,
}

/// `[profile.NAME.work]`
pub(super) struct RawLaw {
    pub(super) base_ms: Option<At<f64>>,
    pub(super) prompt_token_ms: Option<At<f64>>,
    pub(super) sequence_ms: Option<At<f64>>,
    pub(super) max_batch: Option<At<f64>>,
    pub(super) prompt_tokens: Option<At<f64>>,
    pub(super) output_tokens: Option<At<f64>>,
}

pub(super) struct RawRtt {
    /// Region of the cluster.
    pub(super) from: At<String>,
    /// Region of the engine, and the round-trip time to it in ms.
    pub(super) to: Vec<(String, At<f64>)>,
}

#[derive(Default)]
pub(super) struct RawProxy {
    pub(super) listen: Option<At<Vec<SocketAddr>>>,
    pub(super) workers: Option<At<u64>>,
    pub(super) max_connections: Option<At<u64>>,
    pub(super) max_body_bytes: Option<At<u64>>,
    pub(super) connect_timeout: Option<At<Duration>>,
    pub(super) ttft_timeout: Option<At<Duration>>,
    pub(super) gap_timeout: Option<At<Duration>>,
    pub(super) max_in_flight_per_engine: Option<At<u64>>,
}

#[derive(Default)]
pub(super) struct RawAdmin {
    pub(super) socket: Option<At<String>>,
    /// An address, or "off".
    pub(super) listen: Option<At<String>>,
}

#[derive(Default)]
pub(super) struct RawControl {
    pub(super) period: Option<At<Duration>>,
    pub(super) listen: Option<At<SocketAddr>>,
    pub(super) headroom: Option<At<f64>>,
    pub(super) move_limit: Option<At<f64>>,
    pub(super) measured_rtt: Option<At<bool>>,
    pub(super) health_period: Option<At<Duration>>,
    pub(super) scrape_period: Option<At<Duration>>,
    pub(super) canary: Option<At<String>>,
    pub(super) canary_periods: Option<At<u64>>,
}

#[derive(Default)]
pub(super) struct RawStore {
    pub(super) dir: Option<At<String>>,
    pub(super) url: Option<At<String>>,
    pub(super) etcd: Option<At<Vec<SocketAddr>>>,
    pub(super) prefix: Option<At<String>>,
    pub(super) lease: Option<At<Duration>>,
    pub(super) stale_after: Option<At<Duration>>,
}

#[derive(Default)]
pub(super) struct RawKernel {
    pub(super) enabled: Option<At<bool>>,
    pub(super) service: Option<At<SocketAddr>>,
    pub(super) class: Option<At<String>>,
    pub(super) pin_dir: Option<At<String>>,
    pub(super) cgroup: Option<At<String>>,
}

/// Reads the document; mistakes go to the reader.
pub(super) fn read(reader: &Reader<'_>) -> Raw {
    let root = reader.root();
    let raw = Raw {
        clusters: root.each("cluster").iter().map(cluster).collect(),
        engines: root.each("engine").iter().map(engine).collect(),
        classes: root.each("class").iter().map(class).collect(),
        profiles: root.section("profile").map_or_else(Vec::new, |s| named(&s, profile)),
        rtt_ms: root.section("rtt_ms").map_or_else(Vec::new, |s| named(&s, rtt)),
        proxy: root.section("proxy").map_or_else(RawProxy::default, |s| proxy(&s)),
        admin: root.section("admin").map_or_else(RawAdmin::default, |s| admin(&s)),
        control: root.section("control").map_or_else(RawControl::default, |s| control(&s)),
        store: root.section("store").map_or_else(RawStore::default, |s| store(&s)),
        kernel: root.section("kernel").map_or_else(RawKernel::default, |s| kernel(&s)),
    };
    root.refuse_unknown();
    raw
}

fn named<T>(section: &Section<'_>, read: impl Fn(String, &Section<'_>) -> T) -> Vec<T> {
    section.names().into_iter().filter_map(|name| Some(read(name.to_owned(), &section.named(name)?))).collect()
}

fn cluster(section: &Section<'_>) -> RawCluster {
    let cluster = RawCluster {
        name: section.required("name", "a string", section.text("name")),
        region: section.required("region", "a string", section.text("region")),
        demand_rps: section.number_map("demand_rps"),
        detour_budget_ms: section.number("detour_budget_ms"),
    };
    section.refuse_unknown();
    cluster
}

fn engine(section: &Section<'_>) -> RawEngine {
    let engine = RawEngine {
        name: section.required("name", "a string", section.text("name")),
        region: section.required("region", "a string", section.text("region")),
        address: section.required("address", ADDRESS, section.address("address")),
        models: section.required("models", "a list of strings", section.texts("models")),
        profile: section.required("profile", "the name of a [profile.NAME] table", section.text("profile")),
        replicas: section.whole("replicas", 1..10_001),
        tags: section.text_map("tags"),
    };
    section.refuse_unknown();
    engine
}

fn class(section: &Section<'_>) -> RawClass {
    let class = RawClass {
        place: section.place.clone(),
        name: section.required("name", "a string", section.text("name")),
        model: section.required("model", "the name of a model", section.text("model")),
        prompt_tokens: section.number("prompt_tokens"),
        output_tokens: section.required("output_tokens", "the mean output length in tokens", section.number("output_tokens")),
        hit_share: section.number("hit_share"),
        work: section.number("work"),
        ttft_weight: section.number("ttft_weight"),
        decode_weight: section.number("decode_weight"),
        rtt_cap_ms: section.number("rtt_cap_ms"),
        priority: section.whole("priority", 0..256),
        require: section.text_map("require"),
        move_price_ms: section.number("move_price_ms"),
    };
    section.refuse_unknown();
    class
}

fn profile(name: String, section: &Section<'_>) -> RawProfile {
    let profile = RawProfile {
        name: At { value: name, place: section.place.clone() },
        capacity_rps: section.required("capacity_rps", "requests/s at which the engine is full", section.number("capacity_rps")),
        ttft_ms: section.required("ttft_ms", KNOTS, section.knots("ttft_ms")),
        tbot_ms: section.required("tbot_ms", KNOTS, section.knots("tbot_ms")),
        kv_tokens: section.number("kv_tokens"),
        work: section.section("work").map(|s| law(&s)),
    };
    section.refuse_unknown();
    profile
}

fn law(section: &Section<'_>) -> RawLaw {
    let required = |key, wanted| section.required(key, wanted, section.number(key));
    let law = RawLaw {
        base_ms: required("base_ms", "ms that an iteration takes whatever is in it"),
        prompt_token_ms: required("prompt_token_ms", "ms that a prompt token adds to an iteration"),
        sequence_ms: required("sequence_ms", "ms that a sequence in the batch adds to an iteration"),
        max_batch: required("max_batch", "the most sequences of a batch"),
        prompt_tokens: required("prompt_tokens", "uncached prompt tokens of the requests that the profile was measured with"),
        output_tokens: required("output_tokens", "output tokens of the requests that the profile was measured with"),
    };
    section.refuse_unknown();
    law
}

fn rtt(name: String, section: &Section<'_>) -> RawRtt {
    RawRtt { from: At { value: name, place: section.place.clone() }, to: section.numbers() }
}

fn proxy(section: &Section<'_>) -> RawProxy {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    let proxy = RawProxy {
        listen: section.addresses("listen"),
        workers: section.whole("workers", 0..257),
        max_connections: section.whole("max_connections", 1..1_000_001),
        max_body_bytes: section.whole("max_body_bytes", 1..(1 << 30) + 1),
        connect_timeout: section.duration("connect_timeout", Duration::from_millis(1)..60 * second),
        ttft_timeout: section.duration("ttft_timeout", Duration::from_millis(1)..24 * hour),
        gap_timeout: section.duration("gap_timeout", Duration::from_millis(1)..24 * hour),
        max_in_flight_per_engine: section.whole("max_in_flight_per_engine", 1..1_000_001),
    };
    section.refuse_unknown();
    proxy
}

fn admin(section: &Section<'_>) -> RawAdmin {
    let admin = RawAdmin { socket: section.text("socket"), listen: section.text("listen") };
    section.refuse_unknown();
    admin
}

fn control(section: &Section<'_>) -> RawControl {
    let (millis, hour) = (Duration::from_millis(1), Duration::from_secs(3600));
    let control = RawControl {
        period: section.duration("period", 100 * millis..hour),
        listen: section.address("listen"),
        headroom: section.number("headroom"),
        move_limit: section.number("move_limit"),
        measured_rtt: section.flag("measured_rtt"),
        health_period: section.duration("health_period", 100 * millis..hour),
        scrape_period: section.duration("scrape_period", Duration::ZERO..hour),
        canary: section.text("canary"),
        canary_periods: section.whole("canary_periods", 1..1_001),
    };
    section.refuse_unknown();
    control
}

fn store(section: &Section<'_>) -> RawStore {
    let second = Duration::from_secs(1);
    let store = RawStore {
        dir: section.text("dir"),
        url: section.text("url"),
        etcd: section.addresses("etcd"),
        prefix: section.text("prefix"),
        lease: section.duration("lease", 2 * second..60 * second),
        stale_after: section.duration("stale_after", 10 * second..24 * 3600 * second),
    };
    section.refuse_unknown();
    store
}

fn kernel(section: &Section<'_>) -> RawKernel {
    let kernel = RawKernel {
        enabled: section.flag("enabled"),
        service: section.address("service"),
        class: section.text("class"),
        pin_dir: section.text("pin_dir"),
        cgroup: section.text("cgroup"),
    };
    section.refuse_unknown();
    kernel
}
