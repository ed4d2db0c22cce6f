//! Asks a running ilb over its Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::view::{
    EnginesView, ExplainQuery, ExplainView, RollbackRequest, RollbackView, SnapshotsView, StatusView, UnpinRequest, WeightsView,
};
use crate::control::{OrderReply, OrderRequest, PinRequest};

/// The answers are made from memory; longer means that the process hangs.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct AdminClient {
    socket: PathBuf,
    client: Client,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("no running ilb answers at {}: {source} (start one with `ilb run -c FILE`, or name its socket with --socket)", socket.display())]
    Http { socket: PathBuf, source: reqwest::Error },
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
}

impl AdminClient {
    pub fn new(socket: &Path) -> Self {
        let client = Client::builder().unix_socket(socket).timeout(PATIENCE).no_proxy().build();
        let client = client.expect("a client without TLS needs nothing that can be missing");
        Self { socket: socket.to_owned(), client }
    }

    /// Errors: nothing answers at the socket, or what answers refuses; the same for all that
    /// follow.
    pub async fn status(&self) -> Result<StatusView, ClientError> {
        self.ask(Method::GET, "status", None::<&()>).await
    }

    pub async fn engines(&self) -> Result<EnginesView, ClientError> {
        self.ask(Method::GET, "engines", None::<&()>).await
    }

    pub async fn explain(&self, query: &ExplainQuery) -> Result<ExplainView, ClientError> {
        self.ask(Method::POST, "explain", Some(query)).await
    }

    pub async fn weights(&self) -> Result<WeightsView, ClientError> {
        self.ask(Method::GET, "weights", None::<&()>).await
    }

    pub async fn snapshots(&self) -> Result<SnapshotsView, ClientError> {
        self.ask(Method::GET, "snapshots", None::<&()>).await
    }

    /// Returns the new generation.
    pub async fn rollback(&self, rollback: &RollbackRequest) -> Result<RollbackView, ClientError> {
        self.ask(Method::POST, "rollback", Some(rollback)).await
    }

    pub async fn pin(&self, pin: &PinRequest) -> Result<(), ClientError> {
        self.ask(Method::POST, "pins", Some(pin)).await
    }

    /// Returns how many pins were taken back.
    pub async fn unpin(&self, unpin: &UnpinRequest) -> Result<usize, ClientError> {
        self.ask(Method::DELETE, "pins", Some(unpin)).await
    }

    /// Gives an order about an engine.
    pub async fn order(&self, order: &OrderRequest) -> Result<OrderReply, ClientError> {
        self.ask(Method::POST, "orders", Some(order)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        noun: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let failed = |source| ClientError::Http { socket: self.socket.clone(), source };
        // The host name is a formality: the connection goes to the socket.
        let mut request = self.client.request(method, format!("http://ilb/v1/{noun}"));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(failed)?;
        match response.status() {
            status if status.is_success() => response.json().await.map_err(failed),
            status => Err(ClientError::Refused { status, message: response.text().await.map_err(failed)? }),
        }
    }
}
