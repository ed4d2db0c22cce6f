//! The commands of `ilb`, one file per noun. `args` declares the arguments of each command.

pub(crate) mod args;
pub(crate) mod docs;
pub(crate) mod offline;
pub(crate) mod print;
pub(crate) mod profile;
pub(crate) mod profile_args;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod socket;
pub(crate) mod usage;
