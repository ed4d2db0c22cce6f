//! The fleet as the file says it, key by key, before anything is checked against anything else.

use std::net::SocketAddr;

use super::keys;
use super::reader::{At, Pairs, Place, Reader, Section};

pub(super) struct RawFleet {
    pub(super) clusters: Vec<RawCluster>,
    pub(super) engines: Vec<RawEngine>,
    pub(super) classes: Vec<RawClass>,
    pub(super) profiles: Vec<RawProfile>,
    pub(super) rtt_ms: Vec<RawRtt>,
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
    pub(super) ttft_budget_ms: Option<At<f64>>,
    pub(super) require: Vec<(String, At<String>)>,
    pub(super) move_price_ms: Option<At<f64>>,
}

pub(super) struct RawProfile {
    pub(super) name: At<String>,
    pub(super) capacity_rps: Option<At<f64>>,
    pub(super) ttft_ms: Option<At<Pairs>>,
    pub(super) tbot_ms: Option<At<Pairs>>,
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

/// Reads the fleet; mistakes go to the reader.
pub(super) fn read(reader: &Reader<'_>) -> RawFleet {
    let root = reader.root();
    RawFleet {
        clusters: root.each(&keys::cluster::TABLE).iter().map(cluster).collect(),
        engines: root.each(&keys::engine::TABLE).iter().map(engine).collect(),
        classes: root.each(&keys::class::TABLE).iter().map(class).collect(),
        profiles: root.named(&keys::profile::TABLE).into_iter().map(profile).collect(),
        rtt_ms: root.named(&keys::rtt::TABLE).into_iter().map(rtt).collect(),
    }
}

fn cluster(section: &Section<'_>) -> RawCluster {
    use keys::cluster::*;
    let cluster = RawCluster {
        name: section.text(&NAME),
        region: section.text(&REGION),
        demand_rps: section.number_map(&DEMAND_RPS),
        detour_budget_ms: section.number(&DETOUR_BUDGET_MS),
    };
    section.refuse_unknown(&TABLE);
    cluster
}

fn engine(section: &Section<'_>) -> RawEngine {
    use keys::engine::*;
    let engine = RawEngine {
        name: section.text(&NAME),
        region: section.text(&REGION),
        address: section.address(&ADDRESS),
        models: section.texts(&MODELS),
        profile: section.text(&PROFILE),
        replicas: section.whole(&REPLICAS),
        tags: section.text_map(&TAGS),
    };
    section.refuse_unknown(&TABLE);
    engine
}

fn class(section: &Section<'_>) -> RawClass {
    use keys::class::*;
    let class = RawClass {
        place: section.place.clone(),
        name: section.text(&NAME),
        model: section.text(&MODEL),
        prompt_tokens: section.number(&PROMPT_TOKENS),
        output_tokens: section.number(&OUTPUT_TOKENS),
        hit_share: section.number(&HIT_SHARE),
        work: section.number(&WORK),
        ttft_weight: section.number(&TTFT_WEIGHT),
        decode_weight: section.number(&DECODE_WEIGHT),
        rtt_cap_ms: section.number(&RTT_CAP_MS),
        priority: section.whole(&PRIORITY),
        ttft_budget_ms: section.number(&TTFT_BUDGET_MS),
        require: section.text_map(&REQUIRE),
        move_price_ms: section.number(&MOVE_PRICE_MS),
    };
    section.refuse_unknown(&TABLE);
    class
}

fn profile((name, section): (String, Section<'_>)) -> RawProfile {
    use keys::profile::*;
    let profile = RawProfile {
        name: At { value: name, place: section.place.clone() },
        capacity_rps: section.number(&CAPACITY_RPS),
        ttft_ms: section.knots(&TTFT_MS),
        tbot_ms: section.knots(&TBOT_MS),
        kv_tokens: section.number(&KV_TOKENS),
        work: section.section(&WORK).map(|section| law(&section)),
    };
    section.refuse_unknown(&TABLE);
    profile
}

fn law(section: &Section<'_>) -> RawLaw {
    use keys::work::*;
    let law = RawLaw {
        base_ms: section.number(&BASE_MS),
        prompt_token_ms: section.number(&PROMPT_TOKEN_MS),
        sequence_ms: section.number(&SEQUENCE_MS),
        max_batch: section.number(&MAX_BATCH),
        prompt_tokens: section.number(&PROMPT_TOKENS),
        output_tokens: section.number(&OUTPUT_TOKENS),
    };
    section.refuse_unknown(&TABLE);
    law
}

fn rtt((name, section): (String, Section<'_>)) -> RawRtt {
    RawRtt { from: At { value: name, place: section.place.clone() }, to: section.distances() }
}
