//! The choice of an engine for one attempt: the first in the key's rank order that can take it.

use router_common::slot::NO_ENGINE;

use crate::model::EngineId;

/// What stands against sending a request to an engine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Fit,
    /// It has as many requests in flight as it may.
    Full,
    /// It could not be reached lately.
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

/// Picks for a key: `ranks` are the best engines of its slot, `rest` all candidates in rank order, asked for only when needed.
///
/// Engines in `tried` are never picked again. An engine that is out is picked when nothing better is left, because a wrong memory of
/// a failure must not refuse a request that could be served. A full engine is never picked: that bound is the engine's protection.
pub fn pick(
    ranks: &[u16],
    rest: impl FnOnce() -> Vec<EngineId>,
    tried: &[EngineId],
    standing: impl Fn(EngineId) -> Standing,
) -> Pick {
    for &number in ranks {
        let engine = EngineId(number);
        if number != NO_ENGINE && !tried.contains(&engine) && standing(engine) == Standing::Fit {
            return Pick::Engine(engine);
        }
    }
    let (mut out, mut is_full) = (None, false);
    for engine in rest() {
        if tried.contains(&engine) {
            continue;
        }
        match standing(engine) {
            Standing::Fit => return Pick::Engine(engine),
            Standing::Full => is_full = true,
            Standing::Out => out = out.or(Some(engine)),
        }
    }
    match out {
        Some(engine) => Pick::Engine(engine),
        None if is_full => Pick::Full,
        None => Pick::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Fit, Full, Out};

    fn check(tried: &[u16], standings: [Standing; 5], expected: Pick) {
        let ranks = [3, 1, 4, 0];
        let rest = || [3, 1, 4, 0, 2].map(EngineId).to_vec();
        let tried: Vec<EngineId> = tried.iter().copied().map(EngineId).collect();
        assert_eq!(pick(&ranks, rest, &tried, |e| standings[e.index()]), expected, "{tried:?} {standings:?}");
    }

    #[test]
    fn first_fit_engine_in_rank_order() {
        let engine = |n| Pick::Engine(EngineId(n));
        check(&[], [Fit; 5], engine(3));
        check(&[3], [Fit; 5], engine(1));
        check(&[], [Fit, Fit, Fit, Out, Fit], engine(1));
        check(&[], [Fit, Full, Fit, Out, Fit], engine(4));
        check(&[3, 1, 4, 0], [Fit; 5], engine(2));
        check(&[], [Out, Out, Fit, Out, Out], engine(2));
        // Nothing fit: the best-ranked that is merely out, before giving up.
        check(&[], [Out; 5], engine(3));
        check(&[], [Out, Out, Out, Full, Out], engine(1));
        check(&[3, 1], [Full, Out, Full, Out, Full], Pick::Full);
        check(&[], [Full; 5], Pick::Full);
        check(&[0, 1, 2, 3, 4], [Fit; 5], Pick::None);
    }

    #[test]
    fn no_candidates() {
        assert_eq!(pick(&[NO_ENGINE; 4], Vec::new, &[], |_| Fit), Pick::None);
    }
}
