//! A closed loop: each connection sends its next request as soon as the last one is answered.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::latency::Latency;
use crate::clock;
use crate::http::{BodyDecoder, Framing, parse_response};

/// The results of one run, without the warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// All requests, warm-up included: what the proxy's CPU time is spread over.
    pub(super) requests: u64,
    pub(super) rate_rps: f64,
    pub(super) latency: Latency,
}

/// The request: a chat prompt of half a kilobyte, whole answer.
fn request(address: SocketAddr) -> Vec<u8> {
    let question = "What does a load balancer do? ".repeat(16);
    let body = format!(r#"{{"model":"demo","max_tokens":16,"messages":[{{"role":"user","content":"{question}"}}]}}"#);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Latencies are recorded in ns up to 10 s, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("the bounds are constants")
}

/// Runs `connections` loops for `time`. Any answer but a whole 200 is an error: a proxy that fails
/// fast must not look fast.
pub(super) async fn run(address: SocketAddr, connections: usize, time: Duration, warm_up: Duration) -> Result<Run> {
    let start = clock::now();
    let (from, end) = (start + warm_up, start + time);
    let mut loops = JoinSet::new();
    for _ in 0..connections {
        loops.spawn_local(connection(address, from, end));
    }
    let (mut sum, mut requests) = (histogram(), 0);
    while let Some(result) = loops.join_next().await {
        let (found, sent) = result.context("a client loop ended early")??;
        sum.add(&found).expect("all have the same bounds");
        requests += sent;
    }
    ensure!(!sum.is_empty(), "no request was answered in {time:?}");
    Ok(Run { requests, rate_rps: sum.len() as f64 / (end - from).as_secs_f64(), latency: Latency::of(&sum) })
}

async fn connection(address: SocketAddr, from: Instant, end: Instant) -> Result<(Histogram<u64>, u64)> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("failed to connect to {address}"))?;
    stream.set_nodelay(true)?;
    let request = request(address);
    let (mut found, mut sent) = (histogram(), 0);
    let (mut input, mut body) = (BytesMut::with_capacity(16 * 1024), BytesMut::with_capacity(4 * 1024));
    let mut now = clock::now();
    while now < end {
        let before = now;
        stream.write_all(&request).await.context("failed to send a request")?;
        read_answer(&mut stream, &mut input, &mut body).await?;
        sent += 1;
        now = clock::now();
        if before >= from {
            found.saturating_record(u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok((found, sent))
}

async fn read_answer(stream: &mut TcpStream, input: &mut BytesMut, body: &mut BytesMut) -> Result<()> {
    body.clear();
    let mut decoder: Option<BodyDecoder> = None;
    loop {
        if stream.read_buf(input).await.context("failed to read an answer")? == 0 {
            bail!("the connection closed before the end of an answer");
        }
        if decoder.is_none()
            && let Some((head, length)) = parse_response(input, |_, _| ())?
        {
            let _ = input.split_to(length);
            ensure!(head.status == 200, "the answer is status {}; wanted 200", head.status);
            ensure!(head.is_keep_alive && head.framing != Framing::UntilClose, "the answer does not keep the connection");
            decoder = Some(BodyDecoder::new(head.framing));
        }
        if let Some(decoder) = &mut decoder
            && decoder.decode(input, body)?
        {
            ensure!(body.ends_with(b"}"), "the answer is cut: it ends with {:?}", body.last());
            return Ok(());
        }
    }
}
