//! What operators talk to: the Unix socket of the commands, and the TCP port of Prometheus and probes.
//!
//! `view` holds what is shown, as plain data that both ends share; `server` answers, `client` asks, `text` prints it for people.

mod client;
mod families;
mod listen;
pub(crate) mod live;
mod metrics;
mod server;
mod text;
mod view;

pub use client::{AdminClient, ClientError};
pub use families::FAMILIES;
pub use listen::{SocketError, bind_socket};
pub use server::{AdminState, serve_socket, serve_tcp};
pub use view::{
    EngineView, EnginesView, ExplainQuery, ExplainView, LiveEngine, ProxyView, RollbackRequest, RollbackView, RouteView,
    SnapshotView, SnapshotsView, StatusView, UnpinRequest, WeightView, WeightsView,
};
