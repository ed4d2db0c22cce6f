//! From what the file says to a [`Config`]: names are looked up, numbers checked, defaults filled in.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use router_common::slot::MAX_ENGINES;

use super::raw::{Raw, RawCluster, RawEngine, RawLaw, RawProfile, RawRtt};
use super::reader::{ADDRESS, At, Place, Reader, suggest};
use super::{Admin, Config, Control, Kernel, Proxy, Store, defaults};
use crate::model::{Class, ClassId, Cluster, Curve, Engine, Fleet, Profile, Tags, WorkLaw};
use crate::plan::MOVE_LIMIT_FRAC;

/// Clusters and classes one file may have: their product bounds the size of a snapshot.
const MAX_CLUSTERS: usize = 1_000;
const MAX_CLASSES: usize = 256;
/// Longest name: it travels in headers and metric labels.
const MAX_NAME: usize = 64;

/// Resolves `raw`; mistakes go to the reader. `None` when a part could not be made, for which a mistake then stands.
pub(super) fn resolve(raw: &Raw, reader: &Reader<'_>) -> Option<Config> {
    let fleet = Resolver { raw, reader }.fleet();
    let Raw { proxy, admin, control, store, kernel, .. } = raw;
    let checks = Resolver { raw, reader };
    let default_address = |text: &str| text.parse::<SocketAddr>().expect("defaults are legal addresses");
    let listen = control.listen.as_ref().map_or(default_address(defaults::CONTROL_LISTEN), |at| at.value);
    let admin_listen = match &admin.listen {
        None => Some(default_address(defaults::ADMIN_LISTEN)),
        Some(at) if at.value == "off" => None,
        Some(at) => at.value.parse().map_or_else(
            |_| {
                reader.mistake(&at.place, format!("is {:?}; wanted {ADDRESS}, or \"off\"", at.value));
                None
            },
            Some,
        ),
    };
    let url = match &store.url {
        Some(at) if !at.value.starts_with("http://") && !at.value.starts_with("file:///") => {
            let wanted = "wanted the controller's \"http://HOST:PORT\", or its directory as \"file:///PATH\"";
            reader.mistake(&at.place, format!("is {:?}; {wanted}", at.value));
            String::new()
        }
        Some(at) => at.value.trim_end_matches('/').to_owned(),
        None => format!("http://{listen}"),
    };
    let prefix = match &store.prefix {
        Some(At { value, place }) if !value.starts_with('/') || value.len() < 2 || value.ends_with('/') => {
            reader.mistake(
                place,
                format!("is {value:?}; wanted a path such as \"/ilb\", that begins with a slash and does not end in one"),
            );
            String::new()
        }
        Some(at) => at.value.clone(),
        None => defaults::STORE_PREFIX.to_owned(),
    };
    let lease = store.lease.as_ref().map_or(defaults::STORE_LEASE, |at| {
        if at.value.subsec_nanos() != 0 {
            let found = humantime::format_duration(at.value);
            reader.mistake(&at.place, format!("is \"{found}\"; wanted whole seconds, as etcd counts leases in them"));
        }
        at.value
    });
    let scrape_period = control.scrape_period.as_ref().map_or(defaults::SCRAPE_PERIOD, |at| {
        if !at.value.is_zero() && at.value < defaults::SCRAPE_PERIOD_LEAST {
            let (found, least) =
                (humantime::format_duration(at.value), humantime::format_duration(defaults::SCRAPE_PERIOD_LEAST));
            reader.mistake(&at.place, format!("is \"{found}\"; wanted at least \"{least}\", or \"0s\" to leave engines alone"));
        }
        at.value
    });
    let kernel_class = match (&kernel.class, &fleet) {
        (Some(at), Some(fleet)) => fleet.class(&at.value).or_else(|| {
            let known = fleet.classes.iter().map(|c| c.name.as_str());
            reader.mistake(&at.place, format!("names the unknown class {:?}{}", at.value, suggest(&at.value, known)));
            None
        }),
        _ => Some(ClassId(0)),
    };
    let canary = control.canary.as_ref().zip(fleet.as_ref()).and_then(|(at, fleet)| {
        fleet.cluster(&at.value).or_else(|| {
            let known = fleet.clusters.iter().map(|c| c.name.as_str());
            reader.mistake(&at.place, format!("names the unknown cluster {:?}{}", at.value, suggest(&at.value, known)));
            None
        })
    });
    let whole = |at: &Option<At<u64>>, default: usize| at.as_ref().map_or(default, |at| at.value as usize);
    let text = |at: &Option<At<String>>, default: &str| at.as_ref().map_or(default.to_owned(), |at| at.value.clone());
    let duration = |at: &Option<At<_>>, default| at.as_ref().map_or(default, |at| at.value);
    Some(Config {
        proxy: Proxy {
            listen: proxy.listen.as_ref().map_or_else(|| vec![default_address(defaults::PROXY_LISTEN)], |at| at.value.clone()),
            workers: whole(&proxy.workers, defaults::PROXY_WORKERS),
            max_connections: whole(&proxy.max_connections, defaults::MAX_CONNECTIONS),
            max_body_bytes: whole(&proxy.max_body_bytes, defaults::MAX_BODY_BYTES),
            connect_timeout: duration(&proxy.connect_timeout, defaults::CONNECT_TIMEOUT),
            ttft_timeout: duration(&proxy.ttft_timeout, defaults::TTFT_TIMEOUT),
            gap_timeout: duration(&proxy.gap_timeout, defaults::GAP_TIMEOUT),
            max_in_flight_per_engine: whole(&proxy.max_in_flight_per_engine, defaults::MAX_IN_FLIGHT_PER_ENGINE),
        },
        admin: Admin { socket: text(&admin.socket, defaults::ADMIN_SOCKET).into(), listen: admin_listen },
        control: Control {
            period: duration(&control.period, defaults::CONTROL_PERIOD),
            listen,
            headroom_frac: checks.fraction(&control.headroom, defaults::HEADROOM_FRAC),
            move_limit_frac: checks.positive_fraction(&control.move_limit, MOVE_LIMIT_FRAC),
            measured_rtt: control.measured_rtt.as_ref().map_or(defaults::MEASURED_RTT, |at| at.value),
            health_period: duration(&control.health_period, defaults::HEALTH_PERIOD),
            scrape_period: (!scrape_period.is_zero()).then_some(scrape_period),
            canary,
            canary_periods: control.canary_periods.as_ref().map_or(defaults::CANARY_PERIODS, |at| at.value as u32),
        },
        store: Store {
            dir: text(&store.dir, defaults::STORE_DIR).into(),
            url,
            etcd: store.etcd.as_ref().map_or_else(Vec::new, |at| at.value.clone()),
            prefix,
            lease,
            stale_after: duration(&store.stale_after, defaults::STORE_STALE_AFTER),
        },
        kernel: Kernel {
            enabled: kernel.enabled.as_ref().is_some_and(|at| at.value),
            service: kernel.service.as_ref().map_or(default_address(defaults::KERNEL_SERVICE), |at| at.value),
            class: kernel_class?,
            pin_dir: text(&kernel.pin_dir, defaults::KERNEL_PIN_DIR).into(),
            cgroup: kernel.cgroup.as_ref().map(|at| at.value.clone().into()),
        },
        fleet: fleet?,
    })
}

struct Resolver<'a, 's> {
    raw: &'a Raw,
    reader: &'a Reader<'s>,
}

impl Resolver<'_, '_> {
    fn fleet(&self) -> Option<Fleet> {
        let raw = self.raw;
        self.names(raw.clusters.iter().map(|c| &c.name), "cluster", MAX_CLUSTERS);
        self.names(raw.engines.iter().map(|e| &e.name), "engine", MAX_ENGINES);
        let class_names = self.names(raw.classes.iter().map(|c| &c.name), "class", MAX_CLASSES);
        let profiles: Vec<Option<Profile>> = raw.profiles.iter().map(|p| self.profile(p)).collect();
        let clusters: Option<Vec<Cluster>> = raw.clusters.iter().map(|c| self.cluster(c, &class_names)).collect();
        let engines = self.engines();
        let classes = self.classes(&profiles);
        let rtt_ms = self.rtt_ms();
        self.all_servable();
        if let (Some(clusters), Some(classes), Some(rtt_ms)) = (&clusters, &classes, &rtt_ms) {
            self.all_within_reach(clusters, classes, rtt_ms);
        }
        self.addresses_differ();
        Some(Fleet {
            clusters: clusters?,
            engines: engines?,
            classes: classes?,
            profiles: profiles.into_iter().collect::<Option<_>>()?,
            rtt_ms: rtt_ms?,
        })
    }

    /// Checks the names of one kind of thing and returns those that are there.
    fn names<'n>(&self, named: impl Iterator<Item = &'n Option<At<String>>>, kind: &str, most: usize) -> Vec<&'n str> {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let mut names = Vec::new();
        let mut count = 0;
        for name in named {
            count += 1;
            let Some(At { value, place }) = name else { continue };
            let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if value.is_empty() || value.len() > MAX_NAME || !value.chars().all(legal) {
                let wanted = format!("wanted 1 to {MAX_NAME} letters, digits, '-', '_' or '.'");
                self.reader.mistake(place, format!("is {value:?}; {wanted}"));
            }
            match first.get(value.as_str()) {
                Some(line) => self.reader.mistake(place, format!("{value:?} is already the name of the {kind} on line {line}")),
                None => _ = first.insert(value, place.line),
            }
            names.push(value.as_str());
        }
        let file = Place { path: kind.to_owned(), line: 0 };
        match count {
            0 => self.reader.mistake(&file, format!("is missing; wanted at least one [[{kind}]]")),
            n if n > most => self.reader.mistake(&file, format!("there are {n}; wanted at most {most}")),
            _ => {}
        }
        names
    }

    fn cluster(&self, raw: &RawCluster, classes: &[&str]) -> Option<Cluster> {
        let mut demand_rps = vec![0.0; self.raw.classes.len()];
        for (class, demand) in &raw.demand_rps {
            match self.raw.classes.iter().position(|c| c.name.as_ref().is_some_and(|n| n.value == *class)) {
                Some(index) => demand_rps[index] = self.not_negative(demand, "requests/s").unwrap_or(0.0),
                None => {
                    let message = format!("names the unknown class {class:?}{}", suggest(class, classes.iter().copied()));
                    self.reader.mistake(&demand.place, message);
                }
            }
        }
        let detour_budget_ms = raw.detour_budget_ms.as_ref().map(|at| self.positive(at, "ms"));
        Some(Cluster {
            name: raw.name.as_ref()?.value.clone(),
            region: raw.region.as_ref()?.value.clone(),
            demand_rps,
            detour_budget_ms: detour_budget_ms.map_or(Some(None), |budget| budget.map(Some))?,
        })
    }

    fn engines(&self) -> Option<Vec<Engine>> {
        let known = || self.raw.profiles.iter().map(|p| p.name.value.as_str());
        let engines: Vec<Option<Engine>> = (self.raw.engines.iter())
            .map(|raw| {
                let profile = raw.profile.as_ref().and_then(|at| {
                    known().position(|name| name == at.value).or_else(|| {
                        let hint = suggest(&at.value, known());
                        let message =
                            format!("names the unknown profile {:?}{hint}; wanted the NAME of a [profile.NAME] table", at.value);
                        self.reader.mistake(&at.place, message);
                        None
                    })
                });
                if let Some(At { value, place }) = &raw.models
                    && value.is_empty()
                {
                    self.reader.mistake(place, "is empty; wanted at least one model");
                }
                Some(Engine {
                    name: raw.name.as_ref()?.value.clone(),
                    region: raw.region.as_ref()?.value.clone(),
                    address: raw.address.as_ref()?.value,
                    models: raw.models.as_ref()?.value.clone(),
                    profile: profile?,
                    replicas: raw.replicas.as_ref().map_or(1, |at| at.value as u32),
                    tags: tags(&raw.tags),
                })
            })
            .collect();
        engines.into_iter().collect()
    }

    fn classes(&self, profiles: &[Option<Profile>]) -> Option<Vec<Class>> {
        let classes: Vec<Option<Class>> = (self.raw.classes.iter())
            .map(|raw| {
                let output_tokens = raw.output_tokens.as_ref().and_then(|at| self.not_negative(at, "tokens"));
                let prompt_tokens = raw.prompt_tokens.as_ref().map_or(Some(0.0), |at| self.not_negative(at, "tokens"));
                let weight = |at: &Option<At<f64>>| at.as_ref().map_or(Some(1.0), |at| self.not_negative(at, "times"));
                let (ttft_weight, decode_weight) = (weight(&raw.ttft_weight), weight(&raw.decode_weight));
                let hit_share = self.fraction(&raw.hit_share, 0.0);
                let rtt_cap_ms = raw.rtt_cap_ms.as_ref().map(|at| self.positive(at, "ms"));
                let work = raw.work.as_ref().map(|at| self.positive(at, "reference requests"));
                let move_price_ms = raw.move_price_ms.as_ref().map(|at| self.not_negative(at, "ms"));
                let mut class = Class {
                    name: raw.name.as_ref()?.value.clone(),
                    model: raw.model.as_ref()?.value.clone(),
                    prompt_tokens: prompt_tokens?,
                    output_tokens: output_tokens?,
                    hit_share,
                    work: 1.0,
                    ttft_weight: ttft_weight?,
                    decode_weight: decode_weight?,
                    rtt_cap_ms: rtt_cap_ms.map_or(Some(None), |cap| cap.map(Some))?,
                    priority: raw.priority.as_ref().map_or(0, |at| at.value as u8),
                    require: tags(&raw.require),
                    move_price_ms: defaults::MOVE_PRICE_MS,
                };
                let laws = self.laws(&class, profiles);
                class.work = work.unwrap_or_else(|| Some(derived_work(&class, &laws)))?;
                class.move_price_ms = move_price_ms.unwrap_or_else(|| Some(derived_move_price_ms(&class, &laws)))?;
                Some(class)
            })
            .collect();
        classes.into_iter().collect()
    }

    /// The laws of the profiles of the engines that may serve `class`; `None` for a profile without one.
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

    fn law(&self, raw: &RawLaw) -> Option<WorkLaw> {
        let not_negative = |at: &Option<At<f64>>, unit| self.not_negative(at.as_ref()?, unit);
        let positive = |at: &Option<At<f64>>, unit| self.positive(at.as_ref()?, unit);
        let (base_ms, prompt_token_ms) = (not_negative(&raw.base_ms, "ms"), positive(&raw.prompt_token_ms, "ms"));
        let (sequence_ms, max_batch) = (positive(&raw.sequence_ms, "ms"), positive(&raw.max_batch, "sequences"));
        let prompt_tokens = positive(&raw.prompt_tokens, "tokens");
        let output_tokens = positive(&raw.output_tokens, "tokens");
        Some(WorkLaw {
            base_ms: base_ms?,
            prompt_token_ms: prompt_token_ms?,
            sequence_ms: sequence_ms?,
            max_batch: max_batch?,
            prompt_tokens: prompt_tokens?,
            output_tokens: output_tokens?,
        })
    }

    fn profile(&self, raw: &RawProfile) -> Option<Profile> {
        let capacity_rps = raw.capacity_rps.as_ref().and_then(|at| self.positive(at, "requests/s"));
        let curve = |knots: &Option<At<Vec<(f64, f64)>>>| {
            let At { value, place } = knots.as_ref()?;
            Curve::new(value.clone()).map_err(|error| self.reader.mistake(place, error.to_string())).ok()
        };
        let (ttft_ms, tbot_ms) = (curve(&raw.ttft_ms), curve(&raw.tbot_ms));
        let kv_tokens = raw.kv_tokens.as_ref().map(|at| self.positive(at, "tokens"));
        let law = raw.work.as_ref().map(|raw| self.law(raw));
        Some(Profile {
            name: raw.name.value.clone(),
            capacity_rps: capacity_rps?,
            ttft_ms: ttft_ms?,
            tbot_ms: tbot_ms?,
            law: law.map_or(Some(None), |law| law.map(Some))?,
            kv_tokens: kv_tokens.map_or(Some(None), |tokens| tokens.map(Some))?,
        })
    }

    /// RTT for every (cluster, engine), from the regions' table; each pair of regions that is needed must be there.
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
                // A wrong number was reported; any number will do to go on looking for mistakes.
                table.insert((row, column), self.not_negative(at, "ms").unwrap_or(0.0));
            }
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
    fn all_servable(&self) {
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
    fn all_within_reach(&self, clusters: &[Cluster], classes: &[Class], rtt_ms: &[Vec<f64>]) {
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

    fn addresses_differ(&self) {
        let mut first: HashMap<SocketAddr, usize> = HashMap::new();
        for At { value, place } in self.raw.engines.iter().filter_map(|e| e.address.as_ref()) {
            if let Some(line) = first.get(value) {
                let message =
                    format!("{value} is already the address of the engine on line {line}; wanted one engine per address");
                self.reader.mistake(place, message);
            } else {
                first.insert(*value, place.line);
            }
        }
    }

    fn not_negative(&self, at: &At<f64>, unit: &str) -> Option<f64> {
        let legal = at.value.is_finite() && at.value >= 0.0;
        if !legal {
            self.reader.mistake(&at.place, format!("is {}; wanted a finite number of {unit}, 0 or more", at.value));
        }
        legal.then_some(at.value)
    }

    fn positive(&self, at: &At<f64>, unit: &str) -> Option<f64> {
        let legal = at.value.is_finite() && at.value > 0.0;
        if !legal {
            self.reader.mistake(&at.place, format!("is {}; wanted a finite number of {unit} above 0", at.value));
        }
        legal.then_some(at.value)
    }

    fn positive_fraction(&self, at: &Option<At<f64>>, default: f64) -> f64 {
        let Some(At { value, place }) = at else { return default };
        if !(*value > 0.0 && *value <= 1.0) {
            self.reader.mistake(place, format!("is {value}; wanted a fraction above 0, at most 1"));
        }
        *value
    }

    fn fraction(&self, at: &Option<At<f64>>, default: f64) -> f64 {
        let Some(At { value, place }) = at else { return default };
        if !(0.0..1.0).contains(value) {
            self.reader.mistake(place, format!("is {value}; wanted a fraction from 0 to below 1"));
        }
        *value
    }
}

/// The most work that any profile of an engine that may serve `class` makes of it: nowhere is an engine then given too much. A
/// reference request, where the class does not say what its prompts are or a profile what it was measured with.
fn derived_work(class: &Class, laws: &[Option<WorkLaw>]) -> f64 {
    if class.prompt_tokens <= 0.0 {
        return 1.0;
    }
    laws.iter().map(|law| law.map_or(1.0, |law| law.work(class))).reduce(f64::max).unwrap_or(1.0)
}

/// The cached prefill that a moved request loses, on the slowest kind of engine; a guess where too little is known.
fn derived_move_price_ms(class: &Class, laws: &[Option<WorkLaw>]) -> f64 {
    let lost = laws.iter().flatten().map(|law| law.cached_prefill_ms(class)).fold(0.0, f64::max);
    if lost > 0.0 { lost } else { defaults::MOVE_PRICE_MS }
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
