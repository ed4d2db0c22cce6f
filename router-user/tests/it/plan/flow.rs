//! What can be served at all, and how fairly: largest flows from demands to engines, with nothing
//! of the planner.

use router_user::model::{ClassId, ClusterId, EngineId, Fleet};
use router_user::plan::{Inputs, Pin};

/// Share of all that is wanted below which an amount is rounding.
const ROUNDING: f64 = 1e-12;

/// How much of its demand a (cluster, class) wants, as work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) cluster: ClusterId,
    pub(crate) class: ClassId,
    pub(crate) rps: f64,
}

/// All demands of the classes whose priority counts, but for those that are pinned.
pub(crate) fn wanted(fleet: &Fleet, inputs: &Inputs, counts: impl Fn(u8) -> bool) -> Vec<Wanted> {
    let classes = || fleet.class_ids().filter(|class| counts(fleet.classes[class.index()].priority));
    let work = |cluster, class: ClassId| inputs.demand(cluster, class) * fleet.classes[class.index()].work;
    let of_cluster = |cluster| classes().map(|class| Wanted { cluster, class, rps: work(cluster, class) }).collect::<Vec<_>>();
    let is_free = |one: &Wanted| inputs.pins.iter().all(|pin| (pin.cluster, pin.class) != (one.cluster, one.class));
    fleet.cluster_ids().flat_map(of_cluster).filter(is_free).collect()
}

/// What an engine may be given beside what is pinned there, as work.
fn free_rps(fleet: &Fleet, inputs: &Inputs, engine: EngineId) -> f64 {
    let of = |pin: &Pin| {
        let all: f64 = pin.weights.iter().map(|&(_, weight)| weight).sum();
        let here: f64 = pin.weights.iter().filter(|&&(other, _)| other == engine).map(|&(_, weight)| weight).sum();
        inputs.demand(pin.cluster, pin.class) * fleet.classes[pin.class.index()].work * here / all
    };
    (inputs.capacity_rps(fleet, engine) - inputs.pins.iter().map(of).sum::<f64>()).max(0.0)
}

/// The largest flow by shortest augmenting paths (Edmonds and Karp 1972), `[wanted][engine]` as
/// work.
pub(crate) fn largest(fleet: &Fleet, inputs: &Inputs, wanted: &[Wanted]) -> Vec<Vec<f64>> {
    // Nodes: source, sink, what is wanted, engines.
    let first_engine = 2 + wanted.len();
    let size = first_engine + fleet.engines.len();
    let mut room = vec![vec![0.0; size]; size];
    for engine in fleet.engine_ids() {
        room[first_engine + engine.index()][1] = free_rps(fleet, inputs, engine);
    }
    for (at, one) in wanted.iter().enumerate() {
        room[0][2 + at] = one.rps;
        let may = |&engine: &EngineId| inputs.ineligible(fleet, one.cluster, one.class, engine).is_none();
        for engine in fleet.engine_ids().filter(may) {
            room[2 + at][first_engine + engine.index()] = f64::INFINITY;
        }
    }
    let rounding = ROUNDING * wanted.iter().map(|one| one.rps).sum::<f64>();
    loop {
        let (mut before, mut queue) = (vec![None; size], vec![0]);
        let mut next = 0;
        while next < queue.len() && before[1].is_none() {
            let node = queue[next];
            next += 1;
            for to in 1..size {
                if room[node][to] > rounding && before[to].is_none() {
                    before[to] = Some(node);
                    queue.push(to);
                }
            }
        }
        if before[1].is_none() {
            let flow = |at: usize| (first_engine..size).map(|engine| room[engine][2 + at]).collect();
            return (0..wanted.len()).map(flow).collect();
        }
        let mut path = vec![1];
        while let Some(node) = before[*path.last().expect("never empty")] {
            path.push(node);
        }
        let amount = path.windows(2).map(|step| room[step[1]][step[0]]).fold(f64::INFINITY, f64::min);
        for step in path.windows(2) {
            room[step[1]][step[0]] -= amount;
            room[step[0]][step[1]] += amount;
        }
    }
}

/// Most that the engines can serve of what is wanted, as work.
pub(crate) fn most(fleet: &Fleet, inputs: &Inputs, wanted: &[Wanted]) -> f64 {
    largest(fleet, inputs, wanted).iter().flatten().sum()
}

/// What everybody gets where priorities go first and shares are max-min fair within one, by
/// definition: the share of all rises together until it does not fit; who cannot get more alone
/// stays there, the others go on. `[cluster][class]` in requests/s.
pub(crate) fn fairest(fleet: &Fleet, inputs: &Inputs) -> Vec<Vec<f64>> {
    let mut got = wanted(fleet, inputs, |_| true);
    let demand: Vec<f64> = got.iter().map(|one| one.rps).collect();
    let total: f64 = demand.iter().sum();
    got.iter_mut().for_each(|one| one.rps = 0.0);
    let fits = |wanted: &[Wanted]| {
        let all: f64 = wanted.iter().map(|one| one.rps).sum();
        most(fleet, inputs, wanted) >= all - 1e-9 * total
    };
    for priority in 0..=u8::MAX {
        let is_of = |one: &Wanted| fleet.classes[one.class.index()].priority == priority;
        let mut rising: Vec<usize> = (0..got.len()).filter(|&at| is_of(&got[at]) && demand[at] > 0.0).collect();
        let mut share = 0.0;
        while !rising.is_empty() {
            let at_share = |got: &[Wanted], share: f64| {
                let mut asked = got.to_vec();
                rising.iter().for_each(|&at| asked[at].rps = share * demand[at]);
                asked
            };
            let (mut low, mut high) = (share, 1.0);
            if fits(&at_share(&got, high)) {
                low = high;
            }
            while high - low > 1e-9 {
                let middle = (low + high) / 2.0;
                if fits(&at_share(&got, middle)) { low = middle } else { high = middle }
            }
            share = low;
            got = at_share(&got, share);
            let before = rising.len();
            rising.retain(|&at| {
                let mut asked = got.clone();
                asked[at].rps += 1e-3 * demand[at];
                share < 1.0 && fits(&asked)
            });
            if rising.len() == before {
                // What is left to share is below the resolution.
                break;
            }
        }
    }
    let mut served = vec![vec![0.0; fleet.classes.len()]; fleet.clusters.len()];
    let work = |one: &Wanted| fleet.classes[one.class.index()].work;
    got.iter().for_each(|one| served[one.cluster.index()][one.class.index()] = one.rps / work(one));
    served
}
