//! Pure decisions about one request or one engine: no IO, no clock, no entropy. Time is an argument
//! in [`Millis`], chance a number.
//!
//! A request gets a key ([`affinity`]), the key a slot, and the slot an engine ([`pick`]) that does
//! not fail its requests ([`outlier`]) nor leaves them waiting ([`silence`]), and has no more than
//! its share of them ([`bound`]). A planned shed holds while the engines are full ([`fullness`]),
//! which then get no more than they serve in time ([`limit`]); the rest waits in a queue
//! ([`admission`]). Sending a request again costs credit ([`budget`]), which a client that repeats
//! itself does not earn ([`repeats`]). For a whole data plane [`outage`] tells which engines are
//! down, and [`decay`] which weights apply while no controller answers.

pub mod admission;
pub mod affinity;
pub mod bound;
pub mod budget;
pub mod decay;
pub mod fullness;
pub mod limit;
pub mod outage;
pub mod outlier;
pub mod pick;
pub mod repeats;
pub mod silence;

pub use crate::clock::Millis;
