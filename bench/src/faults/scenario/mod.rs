//! What is tried, one file each.

pub(super) mod alarms;
pub(super) mod engines;
pub(super) mod flood;
pub(super) mod hot_key;
pub(super) mod storm;
