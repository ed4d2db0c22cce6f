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
    pub max_connections: usize,
    /// Bytes of a request's head, its first line included; more is answered 431.
    pub max_head_bytes: usize,
    /// Fields of a request's head, up to 256; more is answered 431.
    pub max_head_fields: usize,
    /// Bytes of a request's body; more is answered 413. Bodies are kept whole until the answer begins, so that they can be sent again.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are held at one time; a request whose body would not fit is answered 503.
    pub max_bodies_bytes: usize,
    /// Requests in flight to one engine.
    pub max_in_flight_per_engine: usize,
    /// Idle connections kept per engine.
    pub max_idle_per_engine: usize,
    /// Engines one request may be sent to, the first included.
    pub max_attempts: usize,
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
            max_connections: 8192,
            // Between nginx (32 KiB) and what long cookies and tokens need.
            max_head_bytes: 64 << 10,
            max_head_fields: 128,
            // A prompt with a few images; far above any text that fits a model's context.
            max_body_bytes: 32 << 20,
            // Room for 32 bodies of the largest size, or a hundred thousand usual prompts.
            max_bodies_bytes: 1 << 30,
            max_in_flight_per_engine: 4096,
            max_idle_per_engine: 256,
            max_attempts: 4,
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
