//! Slot tables by weighted rendezvous hashing.
//!
//! For slot s and engine e let u = hash(s, e) in (0, 1); the engine's score is `weight / -ln(u)`.
//! The best score owns the slot and the order of scores is the fallback rank, so a weight change
//! moves exactly the slots it must, an engine that goes away gives its slots to others and moves
//! none of theirs, and the same weights give the same table in every process and in the kernel.
//! Source: weighted rendezvous, Schindler & Thaler, "Weighted distributed hash tables" (SPAA 2005)
//! and its logarithmic method.

use router_common::slot::{NO_ENGINE, RANKS, SLOTS, Slot, mix64};

use crate::model::EngineId;

/// Weight that stands for "eligible, but given none": such an engine owns no slot beside one that
/// has weight, yet has its place in the ranks behind them. Far below any published weight, far
/// above where a float loses the order of scores.
const LAST_RESORT_WEIGHT: f64 = 1e-12;

/// Identity of an engine in hashing: depends on its name alone, so that a new engine in the file
/// moves nobody's sessions.
pub fn engine_key(name: &str) -> u64 {
    // FNV-1a, then a full mix: stable across processes and versions, which the standard hasher does
    // not promise.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    mix64(hash)
}

/// An engine as a candidate for slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub engine: EngineId,
    /// See [`engine_key`].
    pub key: u64,
    /// >= 0; relative to the other candidates.
    pub weight: f64,
}

/// Slot -> engines in rank order.
pub struct SlotTable {
    slots: Box<[Slot; SLOTS]>,
}

impl SlotTable {
    /// Builds the table of the given candidates; those of weight 0 only fill ranks behind the
    /// others.
    ///
    /// Shape: any number of candidates, each engine at most once. Cost: one hash, logarithm and
    /// compare per (slot, candidate).
    pub fn build(candidates: &[Candidate]) -> Self {
        let mut slots = Box::new([[NO_ENGINE; RANKS]; SLOTS]);
        let weighted: Vec<(f64, Candidate)> = candidates.iter().map(|c| (c.weight.max(LAST_RESORT_WEIGHT), *c)).collect();
        for (number, slot) in slots.iter_mut().enumerate() {
            let mut best = [(f64::NEG_INFINITY, NO_ENGINE); RANKS];
            for (weight, candidate) in &weighted {
                let score = weight / exponential(number, candidate.key);
                // Insertion into four places beats any sort here.
                let mut entry = (score, candidate.engine.0);
                for place in &mut best {
                    if entry.0 > place.0 {
                        std::mem::swap(place, &mut entry);
                    }
                }
            }
            *slot = best.map(|(_, engine)| engine);
        }
        Self { slots }
    }

    /// The engines of the slot of a mixed key, best first, padded with [`NO_ENGINE`].
    #[inline]
    pub fn ranks(&self, slot: usize) -> &Slot {
        &self.slots[slot]
    }

    pub fn slots(&self) -> &[Slot; SLOTS] {
        &self.slots
    }
}

/// All candidates in the rank order of one slot, for the rare request whose [`RANKS`] first engines
/// are all gone.
pub fn full_rank(candidates: &[Candidate], slot: usize) -> Vec<EngineId> {
    let mut scored: Vec<(f64, EngineId)> =
        candidates.iter().map(|c| (c.weight.max(LAST_RESORT_WEIGHT) / exponential(slot, c.key), c.engine)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().map(|(_, engine)| engine).collect()
}

/// `-ln(u)` of u = hash(slot, engine) in (0, 1): exponentially distributed, > 0.
#[inline]
fn exponential(slot: usize, key: u64) -> f64 {
    let hash = mix64(key ^ (slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // 53 bits, and half a step, keep u away from 0 and 1.
    let u = ((hash >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64);
    -u.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(weights: &[f64]) -> Vec<Candidate> {
        (weights.iter().enumerate())
            .map(|(i, &weight)| Candidate { engine: EngineId::of(i), key: engine_key(&format!("e{i}")), weight })
            .collect()
    }

    fn shares(table: &SlotTable, engines: usize) -> Vec<f64> {
        let mut count = vec![0usize; engines];
        table.slots().iter().for_each(|slot| count[usize::from(slot[0])] += 1);
        count.into_iter().map(|n| n as f64 / SLOTS as f64).collect()
    }

    #[test]
    fn slots_follow_the_weights() {
        for weights in [vec![0.6, 0.3, 0.1], vec![1.0, 0.0], vec![0.2; 5], vec![0.995, 0.005]] {
            let table = SlotTable::build(&candidates(&weights));
            for (share, weight) in shares(&table, weights.len()).iter().zip(&weights) {
                // Four standard deviations of a share counted over all slots.
                let bound = 4.0 * (weight * (1.0 - weight) / SLOTS as f64).sqrt();
                assert!((share - weight).abs() <= bound, "share {share} for weight {weight} of {weights:?}");
            }
        }
    }

    #[test]
    fn a_weight_change_moves_only_what_it_must() {
        let (before, after) = ([0.50, 0.30, 0.20], [0.55, 0.25, 0.20]);
        let (old, new) = (SlotTable::build(&candidates(&before)), SlotTable::build(&candidates(&after)));
        let moved = old.slots().iter().zip(new.slots()).filter(|(a, b)| a[0] != b[0]).count() as f64 / SLOTS as f64;
        assert!((0.045..=0.06).contains(&moved), "5 points of weight moved {moved} of the slots");
    }

    #[test]
    fn an_engine_that_leaves_moves_nobody_elses_slots_and_the_next_rank_takes_over() {
        let all = candidates(&[0.5, 0.3, 0.2]);
        let (with, without) = (SlotTable::build(&all), SlotTable::build(&all[..2]));
        for (old, new) in with.slots().iter().zip(without.slots()) {
            let survivors: Vec<u16> = old.iter().copied().filter(|&e| e != 2 && e != NO_ENGINE).collect();
            assert_eq!(new[..survivors.len()], survivors[..]);
        }
    }

    #[test]
    fn candidates_without_weight_rank_behind_all_others_and_full_rank_agrees() {
        let some = candidates(&[0.0, 1.0, 0.0, 0.5, 0.0, 0.0]);
        let table = SlotTable::build(&some);
        for slot in (0..SLOTS).step_by(997) {
            let ranks = table.ranks(slot);
            assert!(ranks[..2].contains(&1) && ranks[..2].contains(&3), "{ranks:?}");
            let full = full_rank(&some, slot);
            assert_eq!(full.len(), some.len());
            assert_eq!(ranks.map(EngineId), full[..RANKS]);
        }
        assert!(shares(&table, 6)[0] == 0.0);
        assert_eq!(SlotTable::build(&[]).ranks(0), &[NO_ENGINE; RANKS]);
    }
}
