//! The optimum of small fleets with one class, by exhaustion: nothing of the planner, no linear
//! program.

use router_user::model::{EngineId, Fleet};
use router_user::plan::Inputs;

/// Golden sections per engine: the bracket shrinks by 0.618 each, to 10^-9 of a capacity.
const SECTIONS: u32 = 44;

/// Least mean cost of a request, in ms, of a fleet with one class whose demand fits: its latency,
/// times the class's weights.
///
/// For fixed loads the engines cost what they cost, and the cheapest way to carry demands to loads
/// is a spanning tree of the clusters and engines: all of them are tried. The loads are found by
/// golden section, one inside the other, as the least network cost is convex in the loads too.
pub(crate) fn least_mean_ms(fleet: &Fleet, inputs: &Inputs) -> f64 {
    let demand: Vec<f64> = inputs.demand_rps.iter().map(|of_cluster| of_cluster[0]).collect();
    let weight = fleet.classes[0].ttft_weight;
    let cap_ms = fleet.classes[0].rtt_cap_ms.unwrap_or(f64::INFINITY);
    let cost = |&rtt: &f64| if rtt > cap_ms { f64::INFINITY } else { weight * rtt };
    let cost_ms: Vec<Vec<f64>> = inputs.rtt_ms.iter().map(|row| row.iter().map(cost).collect()).collect();
    let trees = trees(demand.len(), fleet.engines.len());
    let total: f64 = demand.iter().sum();
    least_total(fleet, &Inputs { rtt_ms: cost_ms, ..inputs.clone() }, &demand, &trees, &mut Vec::new(), total) / total
}

fn least_total(
    fleet: &Fleet,
    inputs: &Inputs,
    demand: &[f64],
    trees: &[Vec<(usize, usize)>],
    loads: &mut Vec<f64>,
    rest: f64,
) -> f64 {
    let work = fleet.classes[0].work;
    let capacity = |engine: usize| inputs.capacity_rps(fleet, EngineId(engine as u16)) / work;
    let next = loads.len();
    if next + 1 == fleet.engines.len() {
        loads.push(rest);
        let network = trees.iter().filter_map(|tree| network(tree, &inputs.rtt_ms, demand, loads)).fold(f64::INFINITY, f64::min);
        let engines: f64 = loads.iter().enumerate().map(|(engine, &load)| engine_total(fleet, inputs, engine, load)).sum();
        loads.pop();
        return network + engines;
    }
    let others: f64 = (next + 1..fleet.engines.len()).map(capacity).sum();
    let (mut low, mut high) = ((rest - others).max(0.0), capacity(next).min(rest));
    let mut value = |load: f64| {
        loads.push(load);
        let least = least_total(fleet, inputs, demand, trees, loads, rest - load);
        loads.pop();
        least
    };
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_a, mut at_b) = (value(a), value(b));
    for _ in 0..SECTIONS {
        if at_a <= at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - ratio * (high - low);
            at_a = value(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + ratio * (high - low);
            at_b = value(b);
        }
    }
    at_a.min(at_b)
}

fn engine_total(fleet: &Fleet, inputs: &Inputs, engine: usize, load: f64) -> f64 {
    let (ready, replicas) = (inputs.ready[engine], fleet.engines[engine].replicas);
    if ready == 0 {
        return 0.0;
    }
    let felt = load * fleet.classes[0].work * f64::from(replicas) / f64::from(ready);
    let (class, profile) = (&fleet.classes[0], fleet.profile_of(EngineId(engine as u16)));
    let (ttft_ms, tbot_ms) = (profile.ttft_ms.value(felt), profile.tbot_ms.value(felt));
    load * (class.ttft_weight * ttft_ms + class.decode_weight * class.output_tokens * tbot_ms)
}

/// Every spanning tree of the complete bipartite graph, as lists of (cluster, engine).
fn trees(clusters: usize, engines: usize) -> Vec<Vec<(usize, usize)>> {
    let edges: Vec<(usize, usize)> = (0..clusters).flat_map(|c| (0..engines).map(move |e| (c, e))).collect();
    let size = clusters + engines - 1;
    (0_u32..1 << edges.len())
        .filter(|chosen| chosen.count_ones() as usize == size)
        .map(|chosen| edges.iter().enumerate().filter(|&(at, _)| chosen & (1 << at) != 0).map(|(_, &edge)| edge).collect())
        .filter(|tree: &Vec<_>| is_connected(tree, clusters, engines))
        .collect()
}

fn is_connected(tree: &[(usize, usize)], clusters: usize, engines: usize) -> bool {
    let mut reached = vec![false; clusters + engines];
    reached[0] = true;
    for _ in 0..tree.len() {
        for &(cluster, engine) in tree {
            let any = reached[cluster] || reached[clusters + engine];
            (reached[cluster], reached[clusters + engine]) = (any, any);
        }
    }
    reached.into_iter().all(|is| is)
}

/// Network cost of the one way to carry `demand` to `loads` along `tree`; none if a flow would be
/// negative.
fn network(tree: &[(usize, usize)], cost_ms: &[Vec<f64>], demand: &[f64], loads: &[f64]) -> Option<f64> {
    let (mut demand, mut loads, mut edges, mut cost) = (demand.to_vec(), loads.to_vec(), tree.to_vec(), 0.0);
    while let Some((at, is_cluster)) = edges.iter().enumerate().find_map(|(at, &(cluster, engine))| {
        let alone = |same: &dyn Fn(&(usize, usize)) -> bool| edges.iter().filter(|edge| same(edge)).count() == 1;
        match (alone(&|edge| edge.0 == cluster), alone(&|edge| edge.1 == engine)) {
            (true, _) => Some((at, true)),
            (_, true) => Some((at, false)),
            _ => None,
        }
    }) {
        let (cluster, engine) = edges.swap_remove(at);
        let flow = if is_cluster { demand[cluster] } else { loads[engine] };
        if flow < -1e-9 {
            return None;
        }
        demand[cluster] -= flow;
        loads[engine] -= flow;
        cost += flow * cost_ms[cluster][engine];
    }
    Some(cost)
}
