//! The numbers of the data plane, each with the reason for its default.

use std::net::SocketAddr;
use std::time::Duration;

/// How the data plane listens, and what bounds it. Bounds are per worker unless they say otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxyConfig {
    pub listen: Vec<SocketAddr>,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// Client connections of one worker; more wait in the kernel's queue.
    pub connections_max: usize,
    /// Bytes of a request's head, its first line included; more is answered 431.
    pub head_bytes_max: usize,
    /// Fields of a request's head, up to 256; more is answered 431.
    pub head_fields_max: usize,
    /// Bytes of a request's body; more is answered 413. Bodies are kept whole until the answer begins, so that they can be sent again.
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are held at one time; a request whose body would not fit is answered 503.
    pub bodies_bytes_max: usize,
    /// Requests in flight to one engine.
    pub engine_in_flight_max: usize,
    /// Idle connections kept per engine.
    pub engine_idle_max: usize,
    /// Engines one request may be sent to, the first included.
    pub attempts_max: usize,
    /// For a connection to an engine to be made.
    pub connect_timeout: Duration,
    /// From sending the request to the first byte of the answer's body.
    pub ttft_timeout: Duration,
    /// Between two reads of an answer, or while a client does not take what it is sent.
    pub gap_timeout: Duration,
    /// How long a client's connection may stay idle between requests.
    pub client_idle_timeout: Duration,
    /// From a request's first byte to the end of its head.
    pub head_timeout: Duration,
    /// Between two reads of a request's body.
    pub body_gap_timeout: Duration,
    /// How long an idle connection to an engine is kept.
    pub engine_idle_timeout: Duration,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            workers: 1,
            // Two descriptors per stream fit the usual limit of 20,000 open files.
            connections_max: 8192,
            // Between nginx (32 KiB) and what long cookies and tokens need.
            head_bytes_max: 64 << 10,
            head_fields_max: 128,
            // A prompt with a few images; far above any text that fits a model's context.
            body_bytes_max: 32 << 20,
            // Room for 32 bodies of the largest size, or a hundred thousand usual prompts.
            bodies_bytes_max: 1 << 30,
            engine_in_flight_max: 4096,
            engine_idle_max: 256,
            attempts_max: 4,
            // A SYN lost once comes back after a second; an engine that needs more is gone.
            connect_timeout: Duration::from_secs(1),
            // A prefill of 100,000 tokens behind a queue.
            ttft_timeout: Duration::from_secs(120),
            gap_timeout: Duration::from_secs(60),
            client_idle_timeout: Duration::from_secs(90),
            head_timeout: Duration::from_secs(10),
            body_gap_timeout: Duration::from_secs(30),
            // Below the 5 s after which uvicorn and Node close theirs.
            engine_idle_timeout: Duration::from_secs(4),
        }
    }
}
