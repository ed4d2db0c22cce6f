//! The kernel plane: new connections to the service's virtual address are steered to engines by the
//! kernel itself.
//!
//! [`KernelPlane`] loads the two eBPF programs, pins them with their maps, and writes slot tables.
//! Everything that steers is pinned: the daemon may die, restart and upgrade while the kernel goes
//! on with the last table, and [`detach`] removes all of it. One daemon at a time holds the lock on
//! the pin directory. Without privileges [`KernelPlane::attach`] fails with one line that names
//! what is missing, and the proxy serves alone.
//!
//! In reading order: `load` attaches the programs (`link`, `pins`, `namespace`); `plane` applies a
//! table by way of `banks` and `endpoints`; `listeners` finds the sockets of engines that were
//! listening before; `status` reads it all back. Each map is described in `router_common::layout`,
//! and `maps` has its handle, as `maps.rs` of the eBPF crate has.
//!
//! Limits: engines on this host only, as a listener cannot be on another; one service; Linux 5.15
//! or later. Of several sockets that share an address by `SO_REUSEPORT` the newest stands for all
//! of them. When it closes, [`KernelPlane::maintain`] enters another.

#[cfg(target_endian = "big")]
compile_error!("the eBPF object is built for little-endian kernels");

mod banks;
mod endpoints;
mod error;
mod link;
mod listeners;
mod load;
mod maps;
mod namespace;
mod pins;
mod plane;
mod status;
mod text;

pub use error::KernelError;
pub use pins::DEFAULT_PIN_DIR;
pub use plane::{KernelConfig, KernelPlane, detach};
pub use status::{EngineStatus, KernelStatus, ProgramStatus};
