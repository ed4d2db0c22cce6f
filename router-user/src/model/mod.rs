//! Plain data with invariants that describes the fleet, in the words of ARCHITECTURE.md. No IO, no
//! clock, no randomness.

mod class;
mod curve;
mod eligibility;
mod fleet;
mod generation;
mod ids;
mod profile;
mod weights;

pub use class::Class;
pub use curve::{Curve, CurveError};
pub(crate) use eligibility::ineligible;
pub use eligibility::{Ineligible, Tags};
pub use fleet::{Cluster, Engine, Fleet};
pub use generation::Generation;
pub use ids::{ClassId, ClusterId, EngineId};
pub use profile::{Profile, WorkLaw};
pub use weights::RouteWeights;
