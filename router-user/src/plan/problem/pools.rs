//! Pools of identical engines: docs/model.md, section 3.
//!
//! Engines that no cluster and no class can tell apart cost least at equal utilisation, because
//! their cost is convex. So the linear program sees them as one pool, which divides its load among
//! the members by effective capacity. The pool's prices are the members' prices.

use std::collections::HashMap;

use crate::model::{EngineId, Fleet, Tags};

use crate::plan::Inputs;
use crate::plan::engine_cost::EngineCost;
use crate::plan::load::Load;

/// Engines that divide their common load in proportion to their capacities.
#[derive(Clone, Debug)]
pub(crate) struct Pool<'a> {
    /// In order of name; never empty.
    pub(crate) members: Vec<EngineId>,
    /// Each member's share of the load, by capacity; sum 1.
    pub(crate) shares: Vec<f64>,
    /// Cost of all members together, and of each member.
    pub(crate) cost: EngineCost<'a>,
    pub(crate) apart: Vec<EngineCost<'a>>,
    /// Load of the pins on this pool, and its KV memory in units of load.
    pub(crate) pinned: Load,
    pub(crate) pinned_memory: f64,
    /// KV memory of one request/s of each class, in units of load; empty where memory is no limit.
    pub(crate) memory: Vec<f64>,
}

/// Everything that a price depends on. Engines with equal kinds are interchangeable.
#[derive(PartialEq, Eq, Hash)]
struct Kind<'f> {
    region: &'f str,
    profile: usize,
    /// Bits of the number, since `f64` is not `Eq`.
    slowdown: u64,
    models: Vec<&'f str>,
    tags: &'f Tags,
    /// Round-trip times from every cluster, and the delay that bursts add; as bits.
    rtt: Vec<u64>,
    burst: u64,
}

impl<'a> Pool<'a> {
    fn new(fleet: &'a Fleet, inputs: &Inputs, members: Vec<EngineId>, (pinned, pinned_memory): (Load, f64)) -> Self {
        let cost = EngineCost::pooled(fleet, inputs, &members);
        let share = |&engine: &EngineId| match (members.len(), cost.capacity_rps > 0.0) {
            (1, _) => 1.0,
            (_, true) => inputs.capacity_rps(fleet, engine) / cost.capacity_rps,
            (count, false) => 1.0 / count as f64,
        };
        let shares = members.iter().map(share).collect();
        let apart = members.iter().map(|&member| EngineCost::new(fleet, inputs, member)).collect();
        let profile = fleet.profile_of(members[0]);
        let memory = fleet.classes.iter().filter_map(|class| profile.memory(class)).collect();
        Self { members, shares, cost, apart, pinned, pinned_memory, memory }
    }

    /// The first member, which stands for all.
    pub(crate) fn first(&self) -> EngineId {
        self.members[0]
    }

    /// Members and their shares of the pool's load.
    pub(crate) fn split(&self) -> impl Iterator<Item = (EngineId, f64)> + '_ {
        self.members.iter().copied().zip(self.shares.iter().copied())
    }
}

/// The pools of a fleet in the order of their first members' names. `pinned` is the load of the
/// pins on each engine, and its KV memory.
///
/// An engine with a pinned load, with a load limit of its own, or without a ready replica forms a
/// pool alone.
pub(crate) fn pools<'a>(fleet: &'a Fleet, inputs: &Inputs, pinned: &[(Load, f64)]) -> Vec<Pool<'a>> {
    let mut by_name: Vec<EngineId> = fleet.engine_ids().collect();
    by_name.sort_by(|&a, &b| fleet.engines[a.index()].name.cmp(&fleet.engines[b.index()].name));
    let mut groups: Vec<Vec<EngineId>> = Vec::new();
    let mut group_of: HashMap<Kind<'_>, usize> = HashMap::new();
    for id in by_name {
        let engine = &fleet.engines[id.index()];
        let is_limited = inputs.load_limit_rps[id.index()].is_some();
        if inputs.ready[id.index()] == 0 || is_limited || pinned[id.index()].0.work > 0.0 {
            groups.push(vec![id]);
            continue;
        }
        let mut models: Vec<&str> = engine.models.iter().map(String::as_str).collect();
        models.sort_unstable();
        let rtt = inputs.rtt_ms.iter().map(|row| row[id.index()].to_bits()).collect();
        let (slowdown, burst) = (inputs.slowdown[id.index()].to_bits(), inputs.burst_ms[id.index()].to_bits());
        let (region, profile) = (engine.region.as_str(), engine.profile);
        let kind = Kind { region, profile, slowdown, models, tags: &engine.tags, rtt, burst };
        let at = *group_of.entry(kind).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[at].push(id);
    }
    let pin = |members: &[EngineId]| if let [only] = members { pinned[only.index()] } else { Default::default() };
    groups.into_iter().map(|members| (pin(&members), members)).map(|(p, m)| Pool::new(fleet, inputs, m, p)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Class, Cluster, Curve, Engine, Profile};

    fn fleet() -> Fleet {
        let engine = |name: &str, region: &str, replicas| Engine {
            name: name.to_owned(),
            region: region.to_owned(),
            address: "127.0.0.1:1".parse().expect("an address"),
            models: vec!["m".to_owned()],
            profile: 0,
            replicas,
            tags: Tags::new(),
        };
        let ttft_ms = Curve::new(vec![(0.0, 100.0), (5.0, 120.0), (10.0, 200.0)]).expect("convex");
        let tbot_ms = Curve::new(vec![(0.0, 10.0), (10.0, 20.0)]).expect("convex");
        Fleet {
            clusters: vec![Cluster {
                name: "c".to_owned(),
                region: "r".to_owned(),
                demand_rps: vec![1.0],
                detour_budget_ms: None,
            }],
            engines: vec![engine("b", "r", 4), engine("a", "r", 1), engine("d", "s", 1), engine("c", "r", 2)],
            classes: vec![Class { name: "k".to_owned(), model: "m".to_owned(), output_tokens: 10.0, ..Class::default() }],
            profiles: vec![Profile { name: "p".to_owned(), capacity_rps: 10.0, ttft_ms, tbot_ms, law: None, kv_tokens: None }],
            rtt_ms: vec![vec![1.0; 4]],
        }
    }

    #[test]
    fn a_pool_costs_what_its_members_cost_at_equal_utilisation() {
        let fleet = fleet();
        let mut inputs = Inputs::from_fleet(&fleet);
        inputs.ready = vec![1, 1, 1, 2];
        let pools = pools(&fleet, &inputs, &[(Load::default(), 0.0); 4]);
        let names: Vec<Vec<u16>> = pools.iter().map(|pool| pool.members.iter().map(|member| member.0).collect()).collect();
        assert_eq!(names, [vec![1, 0, 3], vec![2]]);
        let pool = &pools[0];
        assert_eq!((pool.cost.capacity_rps, &pool.shares[..]), (22.5, &[10.0 / 22.5, 2.5 / 22.5, 10.0 / 22.5][..]));
        for load in [0.0, 3.0, 11.25, 20.0, 22.5] {
            let mix = Load { work: 1.0, ttft: 1.0, decode: 30.0 };
            let apart: f64 =
                pool.split().map(|(member, share)| EngineCost::new(&fleet, &inputs, member).total(load * share, mix)).sum();
            assert!((pool.cost.total(load, mix) - apart).abs() < 1e-9 * apart.max(1.0), "{load}: {apart}");
        }
    }

    #[test]
    fn what_differs_in_anything_stays_apart() {
        let fleet = fleet();
        let mut inputs = Inputs::from_fleet(&fleet);
        let count = |fleet: &Fleet, inputs: &Inputs, pinned: &[(Load, f64)]| pools(fleet, inputs, pinned).len();
        assert_eq!(count(&fleet, &inputs, &[(Load::default(), 0.0); 4]), 2);
        let mut pinned = [(Load::default(), 0.0); 4];
        pinned[1].0.work = 1.0;
        assert_eq!(count(&fleet, &inputs, &pinned), 3, "a pin");
        inputs.rtt_ms[0][3] = 2.0;
        assert_eq!(count(&fleet, &inputs, &[(Load::default(), 0.0); 4]), 3, "a distance");
        inputs.slowdown[3] = 1.4;
        inputs.rtt_ms[0][3] = 1.0;
        assert_eq!(count(&fleet, &inputs, &[(Load::default(), 0.0); 4]), 3, "a slowdown");
        inputs.ready[0] = 0;
        assert_eq!(count(&fleet, &inputs, &[(Load::default(), 0.0); 4]), 4, "no ready replica");
        inputs = Inputs { burst_ms: vec![0.0, 1.0, 0.0, 0.0], ..Inputs::from_fleet(&fleet) };
        assert_eq!(count(&fleet, &inputs, &[(Load::default(), 0.0); 4]), 3, "other bursts");
        inputs = Inputs { load_limit_rps: vec![None, Some(5.0), None, None], ..Inputs::from_fleet(&fleet) };
        assert_eq!(count(&fleet, &inputs, &[(Load::default(), 0.0); 4]), 3, "a limit");
    }
}
