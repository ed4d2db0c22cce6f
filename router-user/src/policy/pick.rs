//! The choice of an engine for one attempt: the first in the key's rank order that can take the
//! request.

use router_common::slot::{NO_ENGINE, mix64};

use crate::model::EngineId;

/// Whether an engine can take a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    Available,
    /// It has more requests in flight than its share of them.
    Loaded,
    /// It has less than its share at present, and this key is among those that it lost.
    Reduced,
    /// It has its maximum of requests in flight.
    Full,
    /// It is ejected.
    Out,
}

/// The outcome of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    Engine(EngineId),
    /// Candidates are left, but all of them are full.
    Full,
    /// Every candidate has been tried.
    None,
}

/// Picks an engine for a key. `ranks` are the best engines of its slot; `rest` gives all candidates
/// in rank order, and is called only when those cannot take the request.
///
/// Engines in `tried` are never picked. When no other is left, a loaded engine is picked, then a
/// reduced one. One that is ejected is picked when not even a full one is left: a failure some time
/// ago must not refuse a request that could be served now. A full engine is never picked: the bound
/// protects it.
pub fn pick(
    ranks: &[u16],
    rest: impl FnOnce() -> Vec<EngineId>,
    tried: &[EngineId],
    availability: impl Fn(EngineId) -> Availability,
) -> Pick {
    for &number in ranks {
        let engine = EngineId(number);
        if number != NO_ENGINE && !tried.contains(&engine) && availability(engine) == Availability::Available {
            return Pick::Engine(engine);
        }
    }
    let (mut loaded, mut reduced, mut out, mut is_full) = (None, None, None, false);
    for engine in rest() {
        if tried.contains(&engine) {
            continue;
        }
        match availability(engine) {
            Availability::Available => return Pick::Engine(engine),
            Availability::Loaded => loaded = loaded.or(Some(engine)),
            Availability::Reduced => reduced = reduced.or(Some(engine)),
            Availability::Full => is_full = true,
            Availability::Out => out = out.or(Some(engine)),
        }
    }
    match loaded.or(reduced) {
        Some(engine) => Pick::Engine(engine),
        // Room will come where engines are full; those that are ejected may never serve.
        None if is_full => Pick::Full,
        None => out.map_or(Pick::None, Pick::Engine),
    }
}

/// The whole of a share, as [`keeps`] takes it.
pub const WHOLE_SHARE: u32 = 1 << 16;

/// A share of 0 to 1 as [`keeps`] takes it; only 0 gives 0.
pub fn fixed_share(share: f64) -> u32 {
    if share <= 0.0 { 0 } else { ((share * f64::from(WHOLE_SHARE)).round() as u32).clamp(1, WHOLE_SHARE) }
}

/// Whether a key stays with an engine that has only `share` of its requests. `engine` is the
/// engine's identity in hashing. A smaller share loses the same keys and more, so keys come back in
/// a fixed order.
#[inline]
pub fn keeps(key: u64, engine: u64, share: u32) -> bool {
    // Mixed with another constant than slots are, so that a share empties no slot first.
    (mix64(key ^ engine ^ 0xd1b5_4a32_d192_ed03) >> 48) < u64::from(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Availability::{Available, Full, Loaded, Out, Reduced};

    fn check(tried: &[u16], engines: [Availability; 5], expected: Pick) {
        let ranks = [3, 1, 4, 0];
        let rest = || [3, 1, 4, 0, 2].map(EngineId).to_vec();
        let tried: Vec<EngineId> = tried.iter().copied().map(EngineId).collect();
        assert_eq!(pick(&ranks, rest, &tried, |e| engines[e.index()]), expected, "{tried:?} {engines:?}");
    }

    #[test]
    fn first_fit_engine_in_rank_order() {
        let engine = |n| Pick::Engine(EngineId(n));
        check(&[], [Available; 5], engine(3));
        check(&[3], [Available; 5], engine(1));
        check(&[], [Available, Available, Available, Out, Available], engine(1));
        check(&[], [Available, Full, Available, Reduced, Available], engine(4));
        check(&[3, 1, 4, 0], [Available; 5], engine(2));
        check(&[], [Out, Out, Available, Out, Reduced], engine(2));
        check(&[], [Available, Loaded, Available, Loaded, Available], engine(4));
        check(&[3], [Loaded, Full, Available, Available, Loaded], engine(2));
        // Nothing fit: the best-ranked that is loaded, then one with less than its share, then one
        // that is ejected, before giving up.
        check(&[], [Loaded, Out, Loaded, Reduced, Full], engine(0));
        check(&[], [Reduced, Out, Reduced, Out, Full], engine(0));
        check(&[], [Out; 5], engine(3));
        check(&[], [Out, Out, Out, Full, Out], Pick::Full);
        check(&[3, 1], [Full, Out, Full, Out, Full], Pick::Full);
        check(&[], [Full; 5], Pick::Full);
        check(&[0, 1, 2, 3, 4], [Available; 5], Pick::None);
    }

    #[test]
    fn no_candidates() {
        assert_eq!(pick(&[NO_ENGINE; 4], Vec::new, &[], |_| Available), Pick::None);
    }

    #[test]
    fn a_share_keeps_its_fraction_of_the_keys_and_a_larger_one_the_same_and_more() {
        let keys: Vec<u64> = (0..20_000).map(mix64).collect();
        let kept = |share: f64| keys.iter().map(|&key| keeps(key, 7, fixed_share(share))).collect::<Vec<_>>();
        for (less, more) in [(0.0, 0.1), (0.1, 0.5), (0.5, 1.0)] {
            assert!(kept(less).iter().zip(kept(more)).all(|(&less, more)| !less || more));
        }
        let count = |share| kept(share).iter().filter(|&&kept| kept).count();
        assert_eq!((count(0.0), count(1.0)), (0, 20_000));
        // Five standard deviations of a binomial.
        assert!(count(0.1).abs_diff(2_000) < 213, "{}", count(0.1));
        assert!(fixed_share(1e-9) > 0);
    }
}
