//! Commands to the controller, and its answers.

use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;

use crate::control::engine_orders::{HeldOrder, OrderError, OrderReply, OrderRequest};
use crate::control::estimate::state::MeasureError;
use crate::control::pins::{PinError, PinRequest};
use crate::protocol::DemandReport;
use crate::publish::Generation;
use crate::publish::store::StoreError;

/// Largest number of commands that wait for an earlier one; more are refused.
pub(super) const COMMANDS_WAITING_MOST: usize = 64;

/// A command to the controller. The answer comes through the sender inside.
#[derive(Debug)]
pub enum Command {
    Report(DemandReport, oneshot::Sender<Result<(), CommandError>>),
    Pin(PinRequest, oneshot::Sender<Result<(), CommandError>>),
    /// Removes the pins of a cluster and class; `None` means every one. Answers their number.
    Unpin {
        cluster: Option<String>,
        class: Option<String>,
        done: oneshot::Sender<Result<usize, CommandError>>,
    },
    /// Keeps an operator's order about an engine and tells data planes.
    Order(OrderRequest, oneshot::Sender<Result<OrderReply, CommandError>>),
    /// Publishes an old generation's content under a new number, and pins its weights. Answers the
    /// new number.
    Rollback {
        generation: Generation,
        /// Time after which the pins expire; without it they last until an operator removes them.
        ttl: Option<Duration>,
        done: oneshot::Sender<Result<u64, CommandError>>,
    },
    /// Gives up the lead, if this controller has it.
    Resign(oneshot::Sender<Result<(), CommandError>>),
}

/// An order about an engine under way.
pub(super) struct PendingOrder {
    pub(super) request: OrderRequest,
    /// All orders with it.
    pub(super) orders: Vec<HeldOrder>,
    pub(super) done: oneshot::Sender<Result<OrderReply, CommandError>>,
}

/// Why a command was refused.
#[derive(Debug, Error)]
pub enum CommandError {
    #[error(transparent)]
    Report(#[from] MeasureError),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("this controller stands by: {0}; ask that one")]
    StandsBy(String),
    #[error("generation {0} is of another fleet: clusters, classes, engines or their addresses have changed since")]
    OtherFleet(Generation),
    #[error("{COMMANDS_WAITING_MOST} commands wait already; ask again in a moment")]
    Busy,
    #[error("the control plane is shutting down")]
    Gone,
}
