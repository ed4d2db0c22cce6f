//! Fuzz targets: one function per parser of bytes that come from strangers.
//!
//! A target takes any bytes and panics where the parser breaks a promise. "It does not crash" is
//! the weakest promise; most targets also hold the parser to an oracle: any split of the same bytes
//! parses alike, parsing what was printed gives the same value, an independent parser agrees, the
//! output stays within a bound.
//!
//! `cargo xtask fuzz` searches for such bytes with libFuzzer, guided by coverage. The tests run the
//! kept inputs (`corpus/TARGET/`) through the same functions, without libFuzzer.

mod cuts;
mod targets;

/// A target: its name, which is also its folder's in `corpus/`, and the function that takes an
/// input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by name.
pub const TARGETS: [Target; 8] = [
    ("chunked", targets::chunked::run),
    ("config", targets::config::run),
    ("exposition", targets::exposition::run),
    ("loads", targets::loads::run),
    ("payload", targets::payload::run),
    ("request", targets::request::run),
    ("response", targets::response::run),
    ("snapshot", targets::snapshot::run),
];
