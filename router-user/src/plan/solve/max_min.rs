//! Max-min fair shed: the exact shed of each demand when not everything fits, decided before cost
//! is optimised. Pure.
//!
//! The served amounts are a flow from demands to pools. Priorities are served in order, each as far
//! as the earlier ones leave room. Within a priority the served share is max-min fair: it rises for
//! all demands together until some cannot be served more, because every engine they may use is full
//! of earlier priorities or of the same one. Those demands keep their share, and the others go on
//! rising. The vectors of served amounts form a polymatroid, so the max-min fair vector also has
//! the largest sum (Megiddo 1974; Fujishige 1980): fairness costs no throughput. docs/model.md,
//! section 4.

use std::collections::VecDeque;

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::problem::formulation::Problem;

/// Smallest residual capacity that counts, as a fraction of all demand: far above rounding errors,
/// far below anything measurable.
const ROOM_FRAC: f64 = 1e-11;

/// A maximum flow by shortest augmenting paths in levels (Dinic 1970). Nodes: source, demands,
/// pools, sink.
#[derive(Debug)]
struct Network {
    /// Target and residual capacity of each edge; edge `n ^ 1` is the reverse of edge `n`.
    to: Vec<usize>,
    room: Vec<f64>,
    edges_of: Vec<Vec<usize>>,
    least: f64,
    demands: usize,
}

impl Network {
    fn new(problem: &Problem<'_>) -> Self {
        let (demands, pools) = (problem.demands.len(), problem.pools.len());
        let all: f64 = works(problem).iter().sum();
        let mut network = Self {
            to: Vec::new(),
            room: Vec::new(),
            edges_of: vec![Vec::new(); demands + pools + 2],
            least: (all * ROOM_FRAC).max(f64::MIN_POSITIVE),
            demands,
        };
        let sink = demands + pools + 1;
        // Edge 2 d leads from the source to demand d.
        (0..demands).for_each(|demand| network.edge(0, 1 + demand, 0.0));
        for (at, pool) in problem.pools.iter().enumerate() {
            network.edge(1 + demands + at, sink, (pool.cost.capacity_rps - pool.pinned.work).max(0.0));
        }
        for edge in &problem.edges {
            network.edge(1 + edge.demand, 1 + demands + edge.pool, f64::INFINITY);
        }
        network
    }

    fn edge(&mut self, from: usize, to: usize, room: f64) {
        self.edges_of[from].push(self.to.len());
        self.edges_of[to].push(self.to.len() + 1);
        self.to.extend([to, from]);
        self.room.extend([room, 0.0]);
    }

    /// Work that the current flow serves of a demand.
    fn served(&self, demand: usize) -> f64 {
        self.room[2 * demand + 1]
    }

    /// Distance of every node from the source along edges with residual capacity; `None` for an
    /// unreachable node.
    fn levels(&self) -> Vec<Option<usize>> {
        let mut level = vec![None; self.edges_of.len()];
        level[0] = Some(0);
        let mut queue = VecDeque::from([0]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.edges_of[node] {
                let next = self.to[edge];
                if level[next].is_none() && self.room[edge] > self.least {
                    level[next] = level[node].map(|level| level + 1);
                    queue.push_back(next);
                }
            }
        }
        level
    }

    /// Augments the flow to a maximum. Returns which nodes the source still reaches: the source
    /// side of a minimum cut.
    fn push(&mut self) -> Vec<bool> {
        let sink = self.edges_of.len() - 1;
        loop {
            let level = self.levels();
            if level[sink].is_none() {
                return level.iter().map(Option::is_some).collect();
            }
            let mut next_edge = vec![0; self.edges_of.len()];
            while self.augment(&level, &mut next_edge, sink) {}
        }
    }

    /// Augments along one more path of the level graph; edges that led nowhere are not tried again.
    fn augment(&mut self, level: &[Option<usize>], next_edge: &mut [usize], sink: usize) -> bool {
        let mut path: Vec<usize> = Vec::new();
        let mut node = 0;
        loop {
            if node == sink {
                let amount = path.iter().map(|&edge| self.room[edge]).fold(f64::INFINITY, f64::min);
                for &edge in &path {
                    self.room[edge] -= amount;
                    self.room[edge ^ 1] += amount;
                }
                return true;
            }
            let Some(&edge) = self.edges_of[node].get(next_edge[node]) else {
                // A dead end: go back, and skip the edge that led here.
                let Some(back) = path.pop() else { return false };
                node = self.to[back ^ 1];
                next_edge[node] += 1;
                continue;
            };
            let to = self.to[edge];
            if self.room[edge] > self.least && level[to] == level[node].map(|level| level + 1) {
                path.push(edge);
                node = to;
            } else {
                next_edge[node] += 1;
            }
        }
    }

    /// Resets the flow to zero, and sets the capacity of each demand's source edge to `wanted`.
    fn ask(&mut self, problem: &Problem<'_>, wanted: &[f64]) {
        for edge in (0..self.room.len()).step_by(2) {
            let given = self.room[edge + 1];
            self.room[edge + 1] = 0.0;
            if self.room[edge].is_finite() {
                self.room[edge] += given;
            }
        }
        debug_assert_eq!(problem.demands.len(), self.demands);
        wanted.iter().enumerate().for_each(|(demand, &rps)| self.room[2 * demand] = rps);
    }
}

/// Every demand as work per second: requests/s x work of one request. The flows of the network are
/// work.
fn works(problem: &Problem<'_>) -> Vec<f64> {
    problem.demands.iter().map(|demand| demand.rps * demand.request.work).collect()
}

/// Served amount of each demand, in requests/s; `None` when everything fits. Memory limits and
/// detour budgets are ignored.
pub(crate) fn served(problem: &Problem<'_>) -> Option<Vec<f64>> {
    let priority = |at: usize| problem.demands[at].priority;
    let mut network = Network::new(problem);
    let demand = works(problem);
    network.ask(problem, &demand);
    network.push();
    if demand.iter().enumerate().all(|(at, &rps)| rps - network.served(at) <= NEGLIGIBLE_RPS.max(rps * ROOM_FRAC)) {
        return None;
    }
    let mut priorities: Vec<u8> = (0..demand.len()).map(priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let mut fixed = vec![0.0; demand.len()];
    for level in priorities {
        let mut open: Vec<usize> = (0..demand.len()).filter(|&at| priority(at) == level).collect();
        // Each pass fixes at least one demand.
        while !open.is_empty() {
            let (share, stuck) = risen(&mut network, problem, 1.0, &fixed, &open, &demand);
            open.retain(|&at| {
                if stuck[at] {
                    fixed[at] = share * demand[at];
                }
                !stuck[at]
            });
        }
    }
    Some(fixed.iter().zip(&problem.demands).map(|(work, demand)| work / demand.request.work).collect())
}

/// The largest factor on all demand that can still be served; 0 if some demand cannot be served at
/// all.
pub(crate) fn growth(problem: &Problem<'_>) -> f64 {
    let mut network = Network::new(problem);
    let demand = works(problem);
    let (all, open): (f64, Vec<usize>) = (demand.iter().sum(), (0..demand.len()).collect());
    let room: f64 = problem.pools.iter().map(|pool| (pool.cost.capacity_rps - pool.pinned.work).max(0.0)).sum();
    if all <= 0.0 {
        return 1.0;
    }
    risen(&mut network, problem, room / all, &vec![0.0; demand.len()], &open, &demand).0
}

/// Completes `flow_rps`, one entry per edge and within every capacity, so that each demand gets its
/// amount in `wanted`, as far as that fits. Flows in the way are rerouted along augmenting paths.
pub(crate) fn complete(problem: &Problem<'_>, wanted: &[f64], flow_rps: &mut [f64]) {
    let mut network = Network::new(problem);
    let work = |demand: usize| problem.demands[demand].request.work;
    let wanted: Vec<f64> = wanted.iter().enumerate().map(|(at, rps)| rps * work(at)).collect();
    network.ask(problem, &wanted);
    let first_edge = 2 * (problem.demands.len() + problem.pools.len());
    for (at, (edge, &flow)) in problem.edges.iter().zip(flow_rps.iter()).enumerate() {
        let (pool, flow) = (problem.demands.len() + edge.pool, flow * work(edge.demand));
        network.room[first_edge + 2 * at + 1] += flow;
        for edge in [2 * edge.demand, 2 * pool] {
            network.room[edge] = (network.room[edge] - flow).max(0.0);
            network.room[edge + 1] += flow;
        }
    }
    network.push();
    for (at, flow) in flow_rps.iter_mut().enumerate() {
        *flow = network.room[first_edge + 2 * at + 1] / work(problem.edges[at].demand);
    }
}

/// The largest share up to `most` at which all of `open` can be served beside the amounts in
/// `fixed`, and for each demand whether it cannot be served more.
///
/// Each step tries a share. If it is infeasible, the next share is the one that the minimum cut
/// allows. The cuts only get smaller, so this takes few steps (Newton's method on a concave
/// piecewise-linear function).
fn risen(
    network: &mut Network,
    problem: &Problem<'_>,
    most: f64,
    fixed: &[f64],
    open: &[usize],
    demand: &[f64],
) -> (f64, Vec<bool>) {
    let mut share = most;
    let mut stuck = vec![false; demand.len()];
    loop {
        let mut wanted = fixed.to_vec();
        open.iter().for_each(|&at| wanted[at] = share * demand[at]);
        network.ask(problem, &wanted);
        let reached = network.push();
        let short: f64 = wanted.iter().enumerate().map(|(at, wanted)| wanted - network.served(at)).sum();
        let room = network.least * network.edges_of.len() as f64;
        if short <= room {
            if !stuck.contains(&true) {
                // All demands are served in full.
                open.iter().for_each(|&at| stuck[at] = true);
            }
            return (share, stuck);
        }
        // Demands on the source side of the cut. The missing amount has to come from their share.
        let held: Vec<usize> = open.iter().copied().filter(|&at| reached[1 + at]).collect();
        let rps: f64 = held.iter().map(|&at| demand[at]).sum();
        if held.is_empty() {
            // A rounding error in the fixed amounts, which no share could mend.
            open.iter().for_each(|&at| stuck[at] = true);
            return (share, stuck);
        }
        stuck.iter_mut().for_each(|stuck| *stuck = false);
        held.iter().for_each(|&at| stuck[at] = true);
        if short >= share * rps {
            // No capacity is left for these demands.
            return (0.0, stuck);
        }
        share -= short / rps;
    }
}
