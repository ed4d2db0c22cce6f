//! A synthetic fleet from a seed, and its life tick by tick: demand and distances that wander.

use std::net::{Ipv4Addr, SocketAddr};

use router_user::model::{Class, Cluster, Curve, Engine, Fleet, Profile, Tags};

use router_user::rng::Rng;

/// Regions of the world, and kinds of accelerator; a region has engines of every kind.
const REGIONS: usize = 12;
const KINDS: usize = 3;
/// Factor by which each kind is slower than the next faster one.
const SLOWER: f64 = 1.25;
/// Classes that share a model: two of them, so that engines are shared too.
const CLASSES_PER_MODEL: usize = 2;
/// Round trip across the whole map, in ms, and inside a region.
const WORLD_RTT_MS: f64 = 250.0;
const REGION_RTT_MS: f64 = 1.0;
/// Correlation of the demand of one tick with the next.
const MEMORY: f64 = 0.9;
/// Spread of the noise: of demand around its mean, and of a measured round-trip time.
const DEMAND_NOISE: f64 = 0.02;
const RTT_NOISE: f64 = 0.01;
/// How much engines that are not to be pooled differ in distance, in ms.
const JITTER_MS: f64 = 0.5;

/// Sizes of a fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) clusters: usize,
    pub(crate) engines: usize,
    pub(crate) classes: usize,
    /// Demand of everybody together as a share of capacity.
    pub(crate) load_frac: f64,
    /// Whether engines of one region, kind and model are identical.
    pub(crate) is_pooled: bool,
}

/// A fleet, and what is measured of it as it lives on.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) fleet: Fleet,
    rng: Rng,
    demand_noise: Vec<f64>,
    regions: usize,
}

impl World {
    pub(crate) fn new(size: Size, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let regions = REGIONS.min(size.clusters).min(size.engines).max(1);
        let place: Vec<(f64, f64)> = (0..regions).map(|_| (rng.unit(), rng.unit())).collect();
        let distance = |a: usize, b: usize| {
            let ((ax, ay), (bx, by)) = (place[a], place[b]);
            REGION_RTT_MS + ((ax - bx).hypot(ay - by) * WORLD_RTT_MS / 2_f64.sqrt()).round()
        };
        let models = size.classes.div_ceil(CLASSES_PER_MODEL);
        // From the slowest to the fastest kind: requests/s, and what an idle one takes to answer.
        let profiles: Vec<Profile> = (0..KINDS).map(|kind| profile(kind, 10.0 * 2_f64.powi(kind as i32))).collect();
        let engines: Vec<Engine> = (0..size.engines).map(|nth| engine(nth, regions, models)).collect();
        let jitter: Vec<f64> = engines.iter().map(|_| if size.is_pooled { 0.0 } else { JITTER_MS * rng.unit() }).collect();
        let rtt_ms = (0..size.clusters)
            .map(|at| {
                let to = |(nth, jitter): (usize, &f64)| distance(at % regions, nth % regions) + jitter;
                jitter.iter().enumerate().map(to).collect()
            })
            .collect();
        let classes: Vec<Class> = (0..size.classes)
            .map(|at| Class {
                name: format!("class-{at:02}"),
                model: format!("model-{}", at / CLASSES_PER_MODEL),
                output_tokens: 100.0,
                priority: (at % CLASSES_PER_MODEL) as u8,
                move_price_ms: 5.0,
                ..Class::default()
            })
            .collect();
        let capacity = |model: usize| -> f64 {
            let name = format!("model-{model}");
            engines.iter().filter(|engine| engine.models[0] == name).map(|engine| profiles[engine.profile].capacity_rps).sum()
        };
        let mut clusters: Vec<Cluster> = (0..size.clusters)
            .map(|at| Cluster {
                name: format!("cluster-{at:03}"),
                region: format!("region-{:02}", at % regions),
                demand_rps: Vec::new(),
                detour_budget_ms: None,
            })
            .collect();
        for at in 0..size.classes {
            let sharers = (size.classes - at / CLASSES_PER_MODEL * CLASSES_PER_MODEL).min(CLASSES_PER_MODEL);
            let total = size.load_frac * capacity(at / CLASSES_PER_MODEL) / sharers as f64;
            let shares: Vec<f64> = clusters.iter().map(|_| 0.3 + 1.4 * rng.unit()).collect();
            let sum: f64 = shares.iter().sum();
            clusters.iter_mut().zip(shares).for_each(|(cluster, share)| cluster.demand_rps.push(total * share / sum));
        }
        let demand_noise = vec![0.0; size.clusters * size.classes];
        Self { fleet: Fleet { clusters, engines, classes, profiles, rtt_ms }, rng, demand_noise, regions }
    }

    /// Demand of the next tick: every (cluster, class) wanders around its mean, in requests/s.
    pub(crate) fn demand_rps(&mut self) -> Vec<Vec<f64>> {
        let classes = self.fleet.classes.len();
        for noise in &mut self.demand_noise {
            *noise = MEMORY * *noise + (1.0 - MEMORY * MEMORY).sqrt() * normal(&mut self.rng);
        }
        let of_cluster = |(cluster, noise): (&Cluster, &[f64])| {
            cluster.demand_rps.iter().zip(noise).map(|(mean, noise)| mean * (DEMAND_NOISE * noise).exp()).collect()
        };
        self.fleet.clusters.iter().zip(self.demand_noise.chunks(classes)).map(of_cluster).collect()
    }

    /// Round-trip times as measured in this tick: by region, since what noise they have is the
    /// path's.
    pub(crate) fn rtt_ms(&mut self) -> Vec<Vec<f64>> {
        let regions = self.regions;
        let mut measured = self.fleet.rtt_ms.clone();
        for row in &mut measured {
            let noise: Vec<f64> = (0..regions).map(|_| (RTT_NOISE * normal(&mut self.rng)).exp()).collect();
            row.iter_mut().enumerate().for_each(|(engine, rtt)| *rtt *= noise[engine % regions]);
        }
        measured
    }

    /// The region with the most capacity.
    pub(crate) fn largest_region(&self) -> String {
        let capacity = |region: &str| -> f64 {
            let there = self.fleet.engines.iter().filter(|engine| engine.region == region);
            there.map(|engine| self.fleet.profiles[engine.profile].capacity_rps).sum()
        };
        let mut names: Vec<String> = (0..self.regions).map(|at| format!("region-{at:02}")).collect();
        names.sort_by(|a, b| capacity(b).total_cmp(&capacity(a)).then_with(|| a.cmp(b)));
        names.swap_remove(0)
    }
}

fn engine(nth: usize, regions: usize, models: usize) -> Engine {
    let (region, rest) = (nth % regions, nth / regions);
    Engine {
        name: format!("engine-{nth:04}"),
        region: format!("region-{region:02}"),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 18_000)),
        models: vec![format!("model-{}", rest % models)],
        profile: rest / models % KINDS,
        replicas: 1,
        tags: Tags::new(),
    }
}

/// TTFT and TBOT that are flat at first and bend upwards near saturation, as eight knots of `1 +
/// rho / 2 + rho^4 / (1 - rho) / 10`.
fn profile(kind: usize, capacity_rps: f64) -> Profile {
    let shape = |rho: f64| 1.0 + rho / 2.0 + rho.powi(4) / (1.0 - rho) / 10.0;
    let loads = [0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98];
    let curve = |start: f64| {
        let knots = loads.map(|rho| (rho / 0.98 * capacity_rps, start * shape(rho)));
        Curve::new(knots.to_vec()).expect("the shape is convex")
    };
    let slow = SLOWER.powi((KINDS - 1 - kind) as i32);
    Profile {
        name: format!("kind-{kind}"),
        capacity_rps,
        ttft_ms: curve(150.0 * slow),
        tbot_ms: curve(8.0 * slow),
        law: None,
        kv_tokens: None,
    }
}

/// A standard normal number (Box and Muller, 1958).
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * rng.unit().ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos()
}
