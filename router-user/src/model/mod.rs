//! Plain data with invariants: what the fleet is, in the words of ARCHITECTURE.md. No IO, no clock,
//! no randomness.

mod curve;
mod fleet;
mod generation;
mod ids;
mod profile;
mod weights;

pub use curve::{Curve, CurveError};
pub(crate) use fleet::ineligible;
pub use fleet::{Class, Cluster, Engine, Fleet, Ineligible, Tags};
pub use generation::Generation;
pub use ids::{ClassId, ClusterId, EngineId};
pub use profile::{Profile, WorkLaw};
pub use weights::RouteWeights;
