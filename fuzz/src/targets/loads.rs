//! Engines' loads as JSON and as the ORCA header: every number is unknown or believable.

use router_user::probe::{from_loads, from_orca};

use super::exposition::check_signals;

pub(crate) fn run(input: &[u8]) {
    for signals in [from_loads(input), from_orca(input)].into_iter().flatten() {
        check_signals(&signals);
    }
}
