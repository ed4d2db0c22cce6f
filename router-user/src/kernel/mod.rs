//! The kernel plane: new connections to the service's virtual address are steered to engines by the kernel itself.
//!
//! [`KernelPlane`] loads the two eBPF programs, pins them with their maps, and writes slot tables. Everything that steers is pinned, so the
//! daemon may die, restart and upgrade while the kernel goes on with the last table; [`detach`] removes it all. One daemon at a time holds
//! the lock on the pin directory. Without privileges [`KernelPlane::attach`] fails with one line that says what is missing, and the proxy
//! goes on alone.
//!
//! Limits: engines on this host only (a listener cannot be on another), one service, Linux 5.15 or later. Of several sockets that share an
//! address by `SO_REUSEPORT` the newest stands for all of them; when it closes, [`KernelPlane::maintain`] enters another.

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
