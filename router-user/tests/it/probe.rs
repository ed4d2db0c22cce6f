//! Asking engines for their signals, over real sockets: where they keep them, and what one that
//! hangs or floods costs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use router_user::model::EngineId;
use router_user::probe::{self, Family, Scrape, ScrapeError};
use router_user::rng::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::ports::Reserved;

const PERIOD: Duration = Duration::from_millis(20);

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn watch(address: SocketAddr) -> mpsc::Receiver<Scrape> {
    let (sender, scrapes) = mpsc::channel(8);
    tokio::spawn(probe::watch(probe::client(), EngineId(3), address, PERIOD, sender, Rng::new(3)));
    scrapes
}

async fn next(scrapes: &mut mpsc::Receiver<Scrape>) -> Scrape {
    let scrape = tokio::time::timeout(Duration::from_secs(10), scrapes.recv()).await.expect("within 10 s");
    scrape.expect("the task lives")
}

#[tokio::test]
async fn signals_are_found_wherever_an_engine_keeps_them() {
    const VLLM: &str = "vllm:num_requests_running{engine=\"0\"} 4\nvllm:num_requests_waiting{engine=\"0\"} 1\n";
    const TRTLLM: &str = "trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 0\n";
    const LOADS: &str = r#"{"loads":[{"dp_rank":0,"num_running_reqs":6,"num_waiting_reqs":3,"token_usage":0.5}]}"#;
    let engines = [
        (Router::new().route("/metrics", get(|| async { VLLM })), Family::Vllm, 5.0),
        // JSON at /metrics, Prometheus elsewhere.
        (
            Router::new().route("/metrics", get(|| async { "[]" })).route("/prometheus/metrics", get(|| async { TRTLLM })),
            Family::TrtllmServe,
            2.0,
        ),
        (Router::new().route("/v1/loads", get(|| async { LOADS })), Family::Sglang, 9.0),
        (Router::new().route("/get_load", get(|| async { r#"[{"num_reqs":7,"num_waiting_reqs":2}]"# })), Family::Sglang, 7.0),
    ];
    for (router, family, in_engine) in engines {
        let mut scrapes = watch(serve(router).await);
        for _ in 0..3 {
            let Scrape { engine, outcome } = next(&mut scrapes).await;
            let signals = outcome.expect("found");
            assert_eq!((engine, signals.family, signals.in_engine()), (EngineId(3), family, Some(in_engine)));
        }
    }
}

#[tokio::test]
async fn failures_say_what_they_are() {
    let nothing = serve(Router::new().route("/metrics", get(|| async { "up 1\n" }))).await;
    assert_eq!(next(&mut watch(nothing)).await.outcome, Err(ScrapeError::NoSignals));
    let elsewhere = Router::new().route("/metrics", get(|| async { axum::response::Redirect::temporary("http://127.0.0.1:1/") }));
    assert_eq!(next(&mut watch(serve(elsewhere).await)).await.outcome, Err(ScrapeError::NoSignals), "redirects are not followed");
    let unused = Reserved::new();
    assert_eq!(next(&mut watch(unused.address)).await.outcome, Err(ScrapeError::Refused));
}

#[tokio::test]
async fn an_endless_page_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                while stream.write_all(&[b'x'; 65_536]).await.is_ok() {}
            });
        }
    });
    assert_eq!(next(&mut watch(address)).await.outcome, Err(ScrapeError::TooLarge));
}

#[tokio::test]
async fn an_engine_that_hangs_is_never_asked_twice_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (open, most, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counters = (Arc::clone(&open), Arc::clone(&most), Arc::clone(&total));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (open, most, total) = (Arc::clone(&counters.0), Arc::clone(&counters.1), Arc::clone(&counters.2));
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            total.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                // Answers nothing, and ends when the other side gives up.
                let mut request = [0; 4_096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let mut scrapes = watch(address);
    for _ in 0..2 {
        assert_eq!(next(&mut scrapes).await.outcome, Err(ScrapeError::TimedOut));
    }
    assert!(most.load(Ordering::SeqCst) <= 2, "the next may connect just before the last is seen to leave");
    assert!(total.load(Ordering::SeqCst) <= 3, "two periods of 2 s, and not hundreds of 20 ms");
}
