//! The controller's endpoint for data planes: `GET /v1/snapshot?after=N` (long poll), `GET
//! /v1/snapshots` and `GET /v1/snapshots/N` (what is kept), and `POST /v1/demand`.

use std::net::SocketAddr;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::control::controller::command::{Command, CommandError};
use crate::control::controller::handle::ControllerHandle;
use crate::protocol::DemandReport;
use crate::protocol::endpoint::{DEMAND, SNAPSHOT, SNAPSHOTS, etag, read_etag};
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{Held, Store, StoreError};

/// The endpoint as routes, to be served alone or beside others.
pub fn router(controller: ControllerHandle) -> Router {
    Router::new()
        .route(SNAPSHOT, get(snapshot))
        .route(SNAPSHOTS, get(generations))
        .route(&format!("{SNAPSHOTS}/{{generation}}"), get(old))
        .route(DEMAND, post(demand))
        .with_state(controller)
}

/// Serves the endpoint on `address` until the process ends. Returns the bound address.
///
/// Errors: the address cannot be bound.
pub async fn serve(controller: ControllerHandle, address: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    serve_on(controller, listener);
    Ok(bound)
}

/// Serves the endpoint on a listener that is already bound, until the process ends.
pub fn serve_on(controller: ControllerHandle, listener: TcpListener) {
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router(controller)).await {
            tracing::error!(%error, "the controller's endpoint ended");
        }
    });
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn snapshot(
    State(controller): State<ControllerHandle>,
    Query(After { after }): Query<After>,
    headers: HeaderMap,
) -> Response {
    let told = headers.get(header::IF_NONE_MATCH).and_then(|tag| read_etag(tag.to_str().ok()?));
    let held = Held { generation: Generation(after), ..Held::default() };
    let told = told.map(|(generation, digest)| Held { generation, digest });
    let held = told.filter(|told| told.generation == held.generation).unwrap_or(held);
    match controller.newer_than(held).await {
        Ok(Some(snapshot)) => json(&snapshot),
        Ok(None) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refusal(&error),
    }
}

async fn generations(State(controller): State<ControllerHandle>) -> Response {
    match controller.generations().await {
        Ok(generations) => Json(generations.into_iter().map(|g| g.0).collect::<Vec<_>>()).into_response(),
        Err(error) => refusal(&error),
    }
}

async fn old(State(controller): State<ControllerHandle>, Path(generation): Path<u64>) -> Response {
    match controller.read(Generation(generation)).await {
        Ok(snapshot) => json(&snapshot),
        Err(error) => refusal(&error),
    }
}

/// The very bytes that were published: their digest is in them.
fn json(snapshot: &Snapshot) -> Response {
    let headers = [
        (header::ETAG, etag(Generation(snapshot.generation), &snapshot.digest)),
        (header::CONTENT_TYPE, "application/json".to_owned()),
    ];
    (headers, snapshot.to_json()).into_response()
}

fn refusal(error: &StoreError) -> Response {
    let status = match error {
        StoreError::Unknown(_) => StatusCode::NOT_FOUND,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, error.to_string()).into_response()
}

async fn demand(State(controller): State<ControllerHandle>, Json(report): Json<DemandReport>) -> Response {
    match controller.ask(|done| Command::Report(report, done)).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(CommandError::Gone) => (StatusCode::SERVICE_UNAVAILABLE, CommandError::Gone.to_string()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
