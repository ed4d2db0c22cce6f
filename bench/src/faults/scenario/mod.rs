//! What is tried, one file each.

pub(super) mod alarms;
pub(super) mod beside;
pub(super) mod cut;
pub(super) mod engines;
pub(super) mod flood;
pub(super) mod guess;
pub(super) mod hot_key;
pub(super) mod overload;
pub(super) mod poison;
pub(super) mod storm;
pub(super) mod tenfold;
