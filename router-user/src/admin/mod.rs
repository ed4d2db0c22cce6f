//! The interface for operators: the Unix socket of the commands, and the TCP port of Prometheus and
//! probes.
//!
//! `view` holds what is shown, as plain data that both ends share. `server` accepts connections,
//! `handlers` answer from `state` and `live`, `client` asks, and `text` prints the answers for
//! people. `metrics` fills the metric families that `families` declares.

mod client;
mod endpoints;
mod families;
mod fields;
mod handlers;
mod listen;
mod live;
mod metrics;
mod server;
mod state;
mod text;
mod view;

pub use client::{AdminClient, ClientError};
pub use endpoints::{ENDPOINTS, Place};
pub use families::FAMILIES;
pub use fields::ANSWERS;
pub use listen::{SocketError, bind_socket};
pub use server::serve;
pub use state::AdminState;
pub use view::{
    EngineView, EnginesView, ExplainQuery, ExplainView, LiveEngine, ProxyView, RollbackRequest, RollbackView, RouteView,
    SnapshotView, SnapshotsView, StatusView, UnpinRequest, WeightView, WeightsView,
};
