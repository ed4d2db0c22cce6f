//! The rules that a plan can break.

use thiserror::Error;

/// Why weights are not legal, or an iterate is not optimal.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Violation {
    #[error("class {class:?} of cluster {cluster:?} has {found} routes, wanted one")]
    Routes { cluster: String, class: String, found: usize },
    #[error("class {class:?} of cluster {cluster:?} sheds a share of {found}, wanted one in [0, 1]")]
    Shed { cluster: String, class: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} gives engine {engine:?} weight {found}, wanted a finite number >= 0")]
    Weight { cluster: String, class: String, engine: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} has weights that sum to {found}, wanted 1")]
    Sum { cluster: String, class: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} serves {found} requests/s with no engine, wanted all of them shed")]
    Unrouted { cluster: String, class: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} uses engine {engine:?}, which {why}")]
    Ineligible { cluster: String, class: String, engine: String, why: String },
    #[error("class {class:?} of cluster {cluster:?} uses engine {engine:?}, which has no ready replica")]
    NotReady { cluster: String, class: String, engine: String },
    #[error("class {class:?} of cluster {cluster:?} gives engine {engine:?} weight {found}, wanted {pinned} as pinned")]
    Pin { cluster: String, class: String, engine: String, found: f64, pinned: f64 },
    #[error("engine {engine:?} gets {found} requests/s, wanted at most {allowed}")]
    Capacity { engine: String, found: f64, allowed: f64 },
    #[error(
        "engine {engine:?} gets requests whose KV caches take {found} of its memory, in units of load, wanted at most {allowed}"
    )]
    Memory { engine: String, found: f64, allowed: f64 },
    #[error("a row or bound of the program is missed by {found} requests/s, wanted at most {allowed}")]
    Residual { found: f64, allowed: f64 },
    #[error("a reduced cost has the wrong sign by {found} ms, wanted at most {allowed}: the iterate is not optimal")]
    ReducedCost { found: f64, allowed: f64 },
    #[error("the plan may cost {found} more than the best, as a share, wanted at most {allowed}")]
    Gap { found: f64, allowed: f64 },
}
