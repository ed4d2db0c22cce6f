//! Clusters, engines, classes, profiles and distances, checked against each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use router_common::slot::MAX_ENGINES;

use crate::config::key::Key;
use crate::config::keys::{self, MOVE_PRICE_MS, RTT_WITHIN_REGION_MS};
use crate::config::raw::{RawClass, RawCluster, RawEngine, RawFleet, RawLaw, RawProfile, RawRtt};
use crate::config::reader::{At, Pairs, Place, Reader, suggest};
use crate::model::{Class, Cluster, Curve, Engine, Fleet, Profile, Tags, WorkLaw};

/// Most clusters of a file, and most classes: their product bounds the size of a snapshot.
const MAX_CLUSTERS: usize = 1_000;
const MAX_CLASSES: usize = 256;

/// Resolves the fleet; mistakes go to the reader. `None` when a part could not be made, for which a
/// mistake then stands.
pub(in crate::config) fn resolve(raw: &RawFleet, reader: &Reader<'_>) -> Option<Fleet> {
    let resolver = Resolver { raw, reader };
    let class_names = resolver.all_names();
    let profiles: Vec<Option<Profile>> = raw.profiles.iter().map(|p| resolver.profile(p)).collect();
    let clusters: Option<Vec<Cluster>> = raw.clusters.iter().map(|c| resolver.cluster(c, &class_names)).collect();
    let engines: Vec<Option<Engine>> = raw.engines.iter().map(|engine| resolver.engine(engine)).collect();
    let classes: Option<Vec<Class>> = raw.classes.iter().map(|class| resolver.class(class, &profiles)).collect();
    let rtt_ms = resolver.rtt_ms();
    resolver.check_all_servable();
    if let (Some(clusters), Some(classes), Some(rtt_ms)) = (&clusters, &classes, &rtt_ms) {
        resolver.check_reach(clusters, classes, rtt_ms);
    }
    resolver.check_addresses();
    Some(Fleet {
        clusters: clusters?,
        engines: engines.into_iter().collect::<Option<_>>()?,
        classes: classes?,
        profiles: profiles.into_iter().collect::<Option<_>>()?,
        rtt_ms: rtt_ms?,
    })
}

struct Resolver<'a, 's> {
    raw: &'a RawFleet,
    reader: &'a Reader<'s>,
}

impl<'a> Resolver<'a, '_> {
    /// Checks the names of clusters, engines and classes, and returns those of classes.
    fn all_names(&self) -> Vec<&'a str> {
        let raw = self.raw;
        self.names(raw.clusters.iter().map(|c| &c.name), "cluster", MAX_CLUSTERS);
        self.names(raw.engines.iter().map(|e| &e.name), "engine", MAX_ENGINES);
        self.names(raw.classes.iter().map(|c| &c.name), "class", MAX_CLASSES)
    }

    /// Checks the names of one kind of thing and returns those that are there.
    fn names<'n>(&self, named: impl Iterator<Item = &'n Option<At<String>>>, kind: &str, most: usize) -> Vec<&'n str> {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let mut names = Vec::new();
        let mut count = 0;
        for name in named {
            count += 1;
            let Some(At { value, place }) = name else { continue };
            match first.get(value.as_str()) {
                Some(line) => {
                    let taken = format!("is {value:?}, already the name of the {kind} on line {line}; wanted a name of its own");
                    self.reader.mistake(place, taken);
                }
                None => _ = first.insert(value, place.line),
            }
            names.push(value.as_str());
        }
        let file = Place { path: kind.to_owned(), line: 0 };
        match count {
            0 => self.reader.mistake(&file, format!("is missing; wanted at least one [[{kind}]]")),
            n if n > most => self.reader.mistake(&file, format!("is there {n} times; wanted at most {most}")),
            _ => {}
        }
        names
    }

    fn cluster(&self, raw: &RawCluster, classes: &[&str]) -> Option<Cluster> {
        let mut demand_rps = vec![0.0; self.raw.classes.len()];
        for (class, demand) in &raw.demand_rps {
            match self.raw.classes.iter().position(|c| c.name.as_ref().is_some_and(|n| n.value == *class)) {
                Some(index) => demand_rps[index] = demand.value,
                None => {
                    let message = format!("names the unknown class {class:?}{}", suggest(class, classes.iter().copied()));
                    self.reader.mistake(&demand.place, message);
                }
            }
        }
        Some(Cluster {
            name: raw.name.as_ref()?.value.clone(),
            region: raw.region.as_ref()?.value.clone(),
            demand_rps,
            detour_budget_ms: value(&raw.detour_budget_ms),
        })
    }

    fn engine(&self, raw: &RawEngine) -> Option<Engine> {
        let profile = raw.profile.as_ref().and_then(|at| self.profile_named(at));
        if let Some(At { value, place }) = &raw.models
            && value.is_empty()
        {
            self.reader.mistake(place, "is an empty array; wanted at least one model");
        }
        Some(Engine {
            name: raw.name.as_ref()?.value.clone(),
            region: raw.region.as_ref()?.value.clone(),
            address: raw.address.as_ref()?.value,
            models: raw.models.as_ref()?.value.clone(),
            profile: profile?,
            replicas: raw.replicas.as_ref().map_or_else(|| keys::engine::REPLICAS.preset_whole(), |at| at.value) as u32,
            tags: tags(&raw.tags),
        })
    }

    /// The number of a profile.
    fn profile_named(&self, at: &At<String>) -> Option<usize> {
        let known = || self.raw.profiles.iter().map(|p| p.name.value.as_str());
        let number = known().position(|name| name == at.value);
        if number.is_none() {
            let hint = suggest(&at.value, known());
            let message = format!("names the unknown profile {:?}{hint}; wanted the NAME of a [profile.NAME] table", at.value);
            self.reader.mistake(&at.place, message);
        }
        number
    }

    fn class(&self, raw: &RawClass, profiles: &[Option<Profile>]) -> Option<Class> {
        use keys::class::{DECODE_WEIGHT, HIT_SHARE, PRIORITY, PROMPT_TOKENS, TTFT_BUDGET_MS, TTFT_WEIGHT};
        let or = |at: &Option<At<f64>>, key: &Key| value(at).unwrap_or_else(|| key.preset_number());
        let mut class = Class {
            name: raw.name.as_ref()?.value.clone(),
            model: raw.model.as_ref()?.value.clone(),
            prompt_tokens: or(&raw.prompt_tokens, &PROMPT_TOKENS),
            output_tokens: value(&raw.output_tokens)?,
            prefix_hit_frac: or(&raw.hit_share, &HIT_SHARE),
            work: 1.0,
            ttft_weight: or(&raw.ttft_weight, &TTFT_WEIGHT),
            decode_weight: or(&raw.decode_weight, &DECODE_WEIGHT),
            rtt_cap_ms: value(&raw.rtt_cap_ms),
            ttft_budget_ms: value(&raw.ttft_budget_ms).unwrap_or_else(|| TTFT_BUDGET_MS.preset_number()),
            priority: raw.priority.as_ref().map_or_else(|| PRIORITY.preset_whole(), |at| at.value) as u8,
            require: tags(&raw.require),
            move_price_ms: MOVE_PRICE_MS,
        };
        let laws = self.laws(&class, profiles);
        class.work = value(&raw.work).unwrap_or_else(|| derived_work(&class, &laws));
        class.move_price_ms = value(&raw.move_price_ms).unwrap_or_else(|| derived_move_price_ms(&class, &laws));
        Some(class)
    }

    /// Work laws of the profiles of the engines that may serve `class`; `None` for a profile
    /// without one.
    fn laws(&self, class: &Class, profiles: &[Option<Profile>]) -> Vec<Option<WorkLaw>> {
        let empty = Vec::new();
        let serves = |engine: &&RawEngine| {
            let models = engine.models.as_ref().map_or(&empty, |at| &at.value);
            crate::model::ineligible(models, &tags(&engine.tags), &class.model, &class.require).is_none()
        };
        let named: BTreeSet<&str> =
            self.raw.engines.iter().filter(serves).filter_map(|e| Some(e.profile.as_ref()?.value.as_str())).collect();
        profiles.iter().flatten().filter(|profile| named.contains(profile.name.as_str())).map(|profile| profile.law).collect()
    }

    fn profile(&self, raw: &RawProfile) -> Option<Profile> {
        let curve = |knots: &Option<At<Pairs>>| {
            let At { value, place } = knots.as_ref()?;
            Curve::new(value.clone()).map_err(|error| self.reader.mistake(place, error.to_string())).ok()
        };
        let (ttft_ms, tbot_ms) = (curve(&raw.ttft_ms), curve(&raw.tbot_ms));
        Some(Profile {
            name: raw.name.value.clone(),
            capacity_rps: value(&raw.capacity_rps)?,
            ttft_ms: ttft_ms?,
            tbot_ms: tbot_ms?,
            law: raw.work.as_ref().map_or(Some(None), |work| law(work).map(Some))?,
            kv_tokens: value(&raw.kv_tokens),
        })
    }

    /// RTT for every (cluster, engine), in ms, from the table of regions.
    ///
    /// Each needed pair of different regions must be there; within a region there is a default.
    fn rtt_ms(&self) -> Option<Vec<Vec<f64>>> {
        let mut table: HashMap<(&str, &str), f64> = HashMap::new();
        let from = regions(self.raw.clusters.iter().map(|c| &c.region));
        let to = regions(self.raw.engines.iter().map(|e| &e.region));
        for RawRtt { from: At { value: row, place }, to: entries } in &self.raw.rtt_ms {
            let known = || from.iter().chain(&to).copied();
            if !known().any(|region| region == row) {
                let message = format!("is the region of no cluster or engine{}", suggest(row, known()));
                self.reader.mistake(place, message);
            }
            for (column, at) in entries {
                if !known().any(|region| region == column) {
                    let message = format!("is the region of no cluster or engine{}", suggest(column, known()));
                    self.reader.mistake(&at.place, message);
                }
                table.insert((row, column), at.value);
            }
        }
        for region in from.iter().filter(|region| to.contains(region)) {
            table.entry((*region, *region)).or_insert(RTT_WITHIN_REGION_MS);
        }
        let mut whole = true;
        for row in &from {
            for column in to.iter().filter(|column| !table.contains_key(&(*row, **column))) {
                whole = false;
                let line = self.raw.rtt_ms.iter().find(|r| r.from.value == *row).map_or(0, |r| r.from.place.line);
                let place = Place { path: format!("rtt_ms.{row}.{column}"), line };
                self.reader.mistake(
                    &place,
                    format!("is missing; wanted the round-trip time in ms from region {row} to region {column}"),
                );
            }
        }
        let region = |at: &Option<At<String>>| at.as_ref().map(|at| at.value.clone());
        let rows = self.raw.clusters.iter().map(|cluster| {
            let row = region(&cluster.region)?;
            let cells = self.raw.engines.iter().map(|e| table.get(&(row.as_str(), region(&e.region)?.as_str())).copied());
            cells.collect::<Option<Vec<f64>>>()
        });
        whole.then(|| rows.collect::<Option<_>>())?
    }

    /// Every class needs an engine that may serve it.
    fn check_all_servable(&self) {
        let empty = Vec::new();
        for class in &self.raw.classes {
            let Some(model) = class.model.as_ref() else { continue };
            let require = tags(&class.require);
            let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            let mut served = false;
            for engine in &self.raw.engines {
                let models = engine.models.as_ref().map_or(&empty, |at| &at.value);
                match crate::model::ineligible(models, &tags(&engine.tags), &model.value, &require) {
                    None => served = true,
                    Some(why) => reasons
                        .entry(why.to_string())
                        .or_default()
                        .push(engine.name.as_ref().map_or("(unnamed)", |at| at.value.as_str())),
                }
            }
            if !served && !self.raw.engines.is_empty() {
                let reasons: Vec<String> = reasons.into_iter().map(|(why, who)| format!("{} {why}", who.join(", "))).collect();
                let name = class.name.as_ref().map_or("(unnamed)", |at| at.value.as_str());
                self.reader.mistake(&class.place, format!("no engine can serve class {name:?}: {}", reasons.join("; ")));
            }
        }
    }

    /// A cap on distance must leave every cluster with demand an engine.
    fn check_reach(&self, clusters: &[Cluster], classes: &[Class], rtt_ms: &[Vec<f64>]) {
        let empty = Vec::new();
        for (at, class) in classes.iter().enumerate() {
            let Some(cap) = &self.raw.classes[at].rtt_cap_ms else { continue };
            for (cluster, row) in clusters.iter().zip(rtt_ms).filter(|(cluster, _)| cluster.demand_rps[at] > 0.0) {
                let serves = |raw: &RawEngine| {
                    let models = raw.models.as_ref().map_or(&empty, |at| &at.value);
                    crate::model::ineligible(models, &tags(&raw.tags), &class.model, &class.require).is_none()
                };
                let eligible = self.raw.engines.iter().zip(row).filter(|(raw, _)| serves(raw));
                let nearest_ms = eligible.map(|(_, &rtt)| rtt).fold(f64::INFINITY, f64::min);
                if nearest_ms.is_finite() && class.too_far(nearest_ms).is_some() {
                    let where_from =
                        format!("cluster {:?}, which has demand, is {nearest_ms} ms from the nearest engine", cluster.name);
                    self.reader.mistake(&cap.place, format!("is {}; {where_from} that may serve it; wanted no less", cap.value));
                    break;
                }
            }
        }
    }

    fn check_addresses(&self) {
        let mut first: HashMap<SocketAddr, usize> = HashMap::new();
        for At { value, place } in self.raw.engines.iter().filter_map(|e| e.address.as_ref()) {
            if let Some(line) = first.get(value) {
                let message =
                    format!("is {value}, already the address of the engine on line {line}; wanted one engine per address");
                self.reader.mistake(place, message);
            } else {
                first.insert(*value, place.line);
            }
        }
    }
}

fn value(at: &Option<At<f64>>) -> Option<f64> {
    at.as_ref().map(|at| at.value)
}

fn law(raw: &RawLaw) -> Option<WorkLaw> {
    Some(WorkLaw {
        base_ms: value(&raw.base_ms)?,
        prompt_token_ms: value(&raw.prompt_token_ms)?,
        sequence_ms: value(&raw.sequence_ms)?,
        max_batch: value(&raw.max_batch)?,
        prompt_tokens: value(&raw.prompt_tokens)?,
        output_tokens: value(&raw.output_tokens)?,
    })
}

/// Work of one request of `class`: the largest that a profile of an eligible engine gives, so that
/// no engine is given too much.
///
/// It is one reference request where the class has no prompt length, or the profile no work law.
fn derived_work(class: &Class, laws: &[Option<WorkLaw>]) -> f64 {
    if class.prompt_tokens <= 0.0 {
        return 1.0;
    }
    laws.iter().map(|law| law.map_or(1.0, |law| law.work(class))).reduce(f64::max).unwrap_or(1.0)
}

/// Cached prefill that a moved request loses on the slowest kind of engine, in ms;
/// [`MOVE_PRICE_MS`] where it is unknown.
fn derived_move_price_ms(class: &Class, laws: &[Option<WorkLaw>]) -> f64 {
    let lost = laws.iter().flatten().map(|law| law.cached_prefill_ms(class)).fold(0.0, f64::max);
    if lost > 0.0 { lost } else { MOVE_PRICE_MS }
}

/// The distinct regions, in order of name.
fn regions<'r>(regions: impl Iterator<Item = &'r Option<At<String>>>) -> Vec<&'r str> {
    let mut regions: Vec<&str> = regions.flatten().map(|at| at.value.as_str()).collect();
    regions.sort_unstable();
    regions.dedup();
    regions
}

fn tags(entries: &[(String, At<String>)]) -> Tags {
    entries.iter().map(|(key, at)| (key.clone(), at.value.clone())).collect()
}
