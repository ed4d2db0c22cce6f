//! An etcd that controllers and data planes share.
//!
//! Under a prefix there are:
//!
//! | key | value |
//! |---|---|
//! | `head` | the newest generation in 16 hexadecimal digits, and its snapshot's number of pieces |
//! | `snapshots/GENERATION/PIECE` | a piece of a snapshot's JSON, small enough for one etcd write |
//! | `leader` | the controller that leads, bound to its lease; renewed as a heartbeat |
//! | `epoch` | the epoch of the last leader, which only grows |
//! | `reports/CLUSTER/INSTANCE` | the last demand report of a data plane, bound to its lease |
//! | `pins` | weights set by hand, so that the next leader respects them too |
//! | `orders` | what operators have ordered of engines, for the same reason |
//!
//! Pieces are written first and the head last, so a reader that goes by the head never meets half a
//! snapshot, and its digest is checked besides. Whatever a leader writes is a transaction that
//! holds only while its own election key exists, and the head is replaced only by a greater one: a
//! leader that was deposed without noticing changes nothing, however late its requests arrive.

mod election;
mod publish;
mod report;
mod store;

pub use election::{Election, Term};
pub use publish::Document;
pub use report::Reports;
pub use store::EtcdStore;
