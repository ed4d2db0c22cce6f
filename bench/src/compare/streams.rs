//! Many streams at a time: how long each event took from the engine's write to the client's read.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Args;
use super::latency::Latency;
use crate::clock;
use crate::http::{BodyDecoder, SseReader, parse_response};

/// The prefix of the time that the engine writes into each token, and the digits of that time.
const MARK: &[u8] = b"@@";
const DIGITS: usize = 19;

/// Opens the streams one after the other within one gap between events, so that they do not tick
/// together; `None` when streams are off.
pub(super) async fn run(args: &Args, address: SocketAddr) -> Result<Option<Latency>> {
    if args.streams == 0 {
        return Ok(None);
    }
    let spread = Duration::from_millis(u64::from(args.event_gap_ms)) / u32::try_from(args.streams).unwrap_or(u32::MAX);
    let (start, events) = (clock::now(), args.events);
    let mut streams = JoinSet::new();
    for number in 0..u32::try_from(args.streams).unwrap_or(u32::MAX) {
        streams.spawn_local(async move {
            tokio::time::sleep_until(start + spread * number).await;
            stream(address, events).await
        });
    }
    let mut sum = Histogram::new_with_bounds(1, 10_000_000_000, 3)?;
    while let Some(result) = streams.join_next().await {
        for delay_ns in result.context("a stream ended early")?? {
            sum.saturating_record(delay_ns.max(1));
        }
    }
    let wanted = args.streams as u64 * u64::from(events);
    ensure!(sum.len() == wanted, "{} events arrived; wanted {wanted}", sum.len());
    Ok(Some(Latency::of(&sum)))
}

/// Delays of all events of one stream, in ns.
async fn stream(address: SocketAddr, events: u32) -> Result<Vec<u64>> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("failed to connect to {address}"))?;
    stream.set_nodelay(true)?;
    let body = format!(
        r#"{{"model":"demo","messages":[{{"role":"user","content":"Count the events."}}],"stream":true,"max_tokens":{events}}}"#
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let (mut input, mut body) = (BytesMut::with_capacity(16 * 1024), BytesMut::new());
    let (mut decoder, mut reader, mut delays, mut is_done) = (None, SseReader::default(), Vec::new(), false);
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            bail!("a stream was cut after {} of {events} events", delays.len());
        }
        let now = clock::monotonic_ns();
        if decoder.is_none()
            && let Some((head, length)) = parse_response(&input, |_, _| ())?
        {
            let _ = input.split_to(length);
            ensure!(head.status == 200, "a stream is status {}; wanted 200", head.status);
            decoder = Some(BodyDecoder::new(head.framing));
        }
        let Some(decoder) = &mut decoder else { continue };
        let is_whole = decoder.decode(&mut input, &mut body)?;
        reader.read(&mut body, |event| {
            is_done |= &event.data[..] == b"[DONE]";
            delays.extend(stamp(&event.data).map(|written| now.saturating_sub(written)));
        });
        if is_whole {
            ensure!(is_done, "a stream ended without [DONE]");
            return Ok(delays);
        }
    }
}

/// The time an event was written, if it carries one.
fn stamp(data: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(data, MARK)? + MARK.len();
    std::str::from_utf8(data.get(at..at + DIGITS)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_in_token_events_alone() {
        assert_eq!(stamp(br#"{"delta":{"content":"@@0000000001234567890"}}"#), Some(1_234_567_890));
        assert_eq!(stamp(br#"{"delta":{"role":"assistant"}}"#), None);
        assert_eq!(stamp(b"@@12"), None);
    }
}
