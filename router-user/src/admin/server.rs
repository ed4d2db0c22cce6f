//! Serves operators on the Unix socket, and Prometheus and probes on the TCP port.
//!
//! Both have a thread of their own, so that they answer while the rest of the process is busy, and
//! bounded room: a connection serves one request and has little time for it, so connections that
//! send nothing make room again soon.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{delete, get, post};
use axum::serve::Listener;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admin::handlers;
use crate::admin::state::AdminState;

/// Connections of one listener at a time; more wait in the kernel's queue. A scraper and some
/// probes need a handful.
const CONNECTIONS_MOST: usize = 128;
/// Longest wait for the head of a request. Heads are one packet, and clients are near.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest life of a connection: explaining a fleet of thousands takes seconds, and so does sending
/// it to a slow reader.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves both until the process ends, on a thread of their own.
///
/// Errors: the thread cannot be started.
pub fn serve(state: AdminState, socket: UnixListener, port: Option<TcpListener>) -> io::Result<()> {
    state.judge_proxy();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A listener belongs to the runtime that made it.
    let (socket, port) = (socket.into_std()?, port.map(TcpListener::into_std).transpose()?);
    let serve = async move {
        let socket = UnixListener::from_std(socket)?;
        if let Some(port) = port {
            tokio::spawn(accept(TcpListener::from_std(port)?, port_routes(state.clone())));
        }
        accept(socket, socket_routes(state)).await;
        io::Result::Ok(())
    };
    let thread = move || {
        if let Err(error) = runtime.block_on(serve) {
            tracing::error!(%error, "the admin endpoints ended");
        }
    };
    std::thread::Builder::new().name("ilb-admin".to_owned()).spawn(thread)?;
    Ok(())
}

fn socket_routes(state: AdminState) -> Router {
    Router::new()
        .route("/v1/status", get(handlers::status))
        .route("/v1/engines", get(handlers::engines))
        .route("/v1/weights", get(handlers::weights))
        .route("/v1/explain", post(handlers::explain))
        .route("/v1/snapshots", get(handlers::snapshots))
        .route("/v1/pins", post(handlers::pin))
        .route("/v1/pins", delete(handlers::unpin))
        .route("/v1/orders", post(handlers::order))
        .route("/v1/rollback", post(handlers::rollback))
        .with_state(state)
}

fn port_routes(state: AdminState) -> Router {
    Router::new()
        .route("/metrics", get(handlers::metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(handlers::ready))
        .with_state(state)
}

/// Accepts connections for as long as the listener lives.
async fn accept<L: Listener>(mut listener: L, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MOST));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
        // It logs errors, and pauses after those that would come again at once.
        let (connection, _) = listener.accept().await;
        tokio::spawn(converse(connection, router.clone(), permit));
    }
}

/// Serves one request of a connection.
async fn converse(connection: impl AsyncRead + AsyncWrite + Unpin, router: Router, _room: OwnedSemaphorePermit) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION_TIMEOUT, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an admin connection failed"),
        Err(_) => tracing::debug!("an admin connection took too long and was closed"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn health_is_answered_while_idle_connections_take_all_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = AdminState { clock: crate::clock::Clock::start(), controller: None, data: None };
        tokio::spawn(accept(listener, port_routes(state)));
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MOST {
            idle.push(TcpStream::connect(address).await.expect("connected"));
        }
        let mut probe = TcpStream::connect(address).await.expect("connected");
        probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
        for mut held in idle {
            assert_eq!(held.read(&mut [0; 64]).await.unwrap_or(0), 0, "closed without an answer");
        }
    }
}
