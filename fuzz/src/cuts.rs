//! Ways to cut an input into the pieces in which a network may deliver it.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Random ways per input; one more cuts after every byte.
const RANDOM_WAYS: u64 = 3;

/// Ways to cut `input`: the ends of the pieces, ascending, the last being the input's own end. The
/// same input gives the same ways.
pub(crate) fn ways(input: &[u8]) -> impl Iterator<Item = Vec<usize>> {
    let random = (0..RANDOM_WAYS).map(move |way| {
        let is_cut = |at: &usize| {
            let mut hash = DefaultHasher::new();
            (way, at, input).hash(&mut hash);
            // One end in 2, 4 and 8 bytes.
            hash.finish().is_multiple_of(2 << way)
        };
        (1..input.len()).filter(is_cut).chain([input.len()]).collect()
    });
    random.chain([(1..=input.len()).collect()])
}
