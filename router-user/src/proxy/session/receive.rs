//! Receives the body of a request, and frees it.

use std::time::Duration;

use super::body::{BodyAt, NoBody};
use super::client::{KEPT_MAX, Session, Wait};
use crate::config::ProxyConfig;
use crate::io::Stream;
use crate::policy::Millis;
use crate::proxy::http1::chunk;
use crate::proxy::http1::head::Length;
use crate::proxy::http1::request::Request;
use crate::proxy::reply::ErrorReply;

impl<S: Stream> Session<'_, S> {
    /// Waits for the whole body.
    pub(super) async fn body(&mut self, request: &Request, head_length: usize) -> Result<BodyAt, NoBody> {
        let limit = self.worker.config.max_body_bytes;
        let length = match request.length {
            Length::Unknown => return Ok(BodyAt { held: head_length, start: head_length, is_own: false }),
            Length::Known(n) if n > limit as u64 => return Err(NoBody::Refused(ErrorReply::body_too_large(limit))),
            Length::Known(n) => n as usize,
            Length::Chunked => return self.chunked_body(request, head_length).await,
        };
        let held = head_length + length;
        let mut has = 0;
        let begun = self.worker.timers.coarse();
        loop {
            let come = (self.client.input().len() - head_length).min(length);
            self.take_room(come - has)?;
            has = come;
            if has == length {
                break;
            }
            self.expect_more(request, has == 0, begun, has).await?;
        }
        self.room.settle();
        Ok(BodyAt { held, start: head_length, is_own: false })
    }

    async fn chunked_body(&mut self, request: &Request, head_length: usize) -> Result<BodyAt, NoBody> {
        let limit = self.worker.config.max_body_bytes;
        self.client.consume(head_length);
        self.body.clear();
        let mut is_first = true;
        let begun = self.worker.timers.coarse();
        let mut decoder = chunk::Decoder::default();
        loop {
            let input = self.client.input();
            match decoder.step(input).map_err(|e| NoBody::Refused(ErrorReply::head(e.into())))? {
                chunk::Piece::Framing(n) => self.client.consume(n),
                chunk::Piece::Data(n) if self.body.len() + n > limit => {
                    return Err(NoBody::Refused(ErrorReply::body_too_large(limit)));
                }
                chunk::Piece::Data(n) => {
                    self.take_room(n)?;
                    self.body.extend_from_slice(&input[..n]);
                    self.client.consume(n);
                }
                chunk::Piece::Incomplete => {
                    let is_none_here = is_first && self.client.input().is_empty();
                    is_first = false;
                    self.expect_more(request, is_none_here, begun, self.body.len()).await?;
                }
                chunk::Piece::Done => {
                    self.room.settle();
                    return Ok(BodyAt { held: 0, start: 0, is_own: true });
                }
            }
        }
    }

    fn take_room(&self, bytes: usize) -> Result<(), NoBody> {
        if self.room.take(bytes, &self.worker.timers) { Ok(()) } else { Err(NoBody::Refused(ErrorReply::bodies_full())) }
    }

    /// Sends `100 Continue` to a client that asked whether to send its body.
    async fn proceed(&mut self) -> Result<(), NoBody> {
        self.out.clear();
        self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        self.send().await.map_err(|_| NoBody::Gone)
    }

    /// Waits for more of a body, of which `received` bytes have arrived since time `begun`. When
    /// `is_none_here` yet, answers the client's expectation first.
    async fn expect_more(&mut self, request: &Request, is_none_here: bool, begun: Millis, received: usize) -> Result<(), NoBody> {
        self.room.expect_more(self.worker.timers.coarse());
        if is_none_here && request.expects_continue {
            self.proceed().await?;
        }
        self.deadline.set(patience(&self.worker.config, self.worker.timers.coarse().saturating_sub(begun), received));
        match self.wait(false).await {
            _ if self.room.is_evicted() => Err(NoBody::Refused(ErrorReply::bodies_full())),
            Wait::Filled => Ok(()),
            Wait::Gone | Wait::Stopping => Err(NoBody::Gone),
            Wait::Expired => Err(NoBody::Refused(ErrorReply::client_timeout())),
        }
    }

    /// Frees a body that is not sent again.
    pub(super) fn let_body_go(&mut self, at: BodyAt) {
        self.client.consume(at.held);
        if self.body.capacity() > KEPT_MAX {
            self.body = Vec::new();
        }
        self.room.release();
    }
}

/// Longest wait for more of a body, of which `received` bytes have arrived in `elapsed` ms: one
/// gap, or less where its mean rate would fall below the minimum.
fn patience(config: &ProxyConfig, elapsed: Millis, received: usize) -> Duration {
    let gap = config.body_gap_timeout;
    let Some(earned_ms) = (received as u64).saturating_mul(1000).checked_div(config.min_upload_bytes_per_s) else { return gap };
    let due = gap.saturating_add(Duration::from_millis(earned_ms));
    gap.min(due.saturating_sub(Duration::from_millis(elapsed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_more_of_a_body_ends_with_the_gap_or_with_its_mean_rate() {
        let gap = Duration::from_secs(30);
        let config = ProxyConfig { body_gap_timeout: gap, min_upload_bytes_per_s: 1_000, ..Default::default() };
        for (elapsed_s, received, left_s) in
            [(0, 0, 30), (29, 0, 1), (31, 0, 0), (29, 2_000, 3), (60, 50_000, 20), (60, 1 << 30, 30), (100, 60_000, 0)]
        {
            assert_eq!(patience(&config, 1000 * elapsed_s, received), Duration::from_secs(left_s), "{received} in {elapsed_s} s");
        }
        let config = ProxyConfig { min_upload_bytes_per_s: 0, ..config };
        assert_eq!(patience(&config, 1_000_000, 0), gap);
    }
}
