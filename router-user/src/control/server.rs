//! The controller's endpoint for data planes: `GET /v1/snapshot?after=N` (long poll) and `POST /v1/demand`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;

use super::controller::{Command, CommandError, ControllerHandle};
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DemandReport, LONG_POLL};

/// The endpoint as routes, to be served alone or beside others.
pub fn router(controller: ControllerHandle) -> Router {
    Router::new().route("/v1/snapshot", get(snapshot)).route("/v1/demand", post(demand)).with_state(controller)
}

/// Serves the endpoint on `address` until the process ends. Returns the bound address.
///
/// Errors: the address cannot be bound.
pub async fn serve(controller: ControllerHandle, address: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router(controller)).await {
            tracing::error!(%error, "the controller's endpoint ended");
        }
    });
    Ok(bound)
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn snapshot(State(controller): State<ControllerHandle>, Query(After { after }): Query<After>) -> Response {
    match controller.newer_than(after, LONG_POLL).await {
        Some(snapshot) => json(&snapshot),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

fn json(snapshot: &Arc<Snapshot>) -> Response {
    let etag = format!("\"{}\"", snapshot.generation);
    ([(header::ETAG, etag)], Json(snapshot.as_ref())).into_response()
}

async fn demand(State(controller): State<ControllerHandle>, Json(report): Json<DemandReport>) -> Response {
    match controller.ask(|done| Command::Report(report, done)).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(CommandError::Gone) => (StatusCode::SERVICE_UNAVAILABLE, CommandError::Gone.to_string()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
