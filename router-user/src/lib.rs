//! `ilb`, the inference load balancer, as a library: a guided tour.
//!
//! ```text
//!   data planes ── demand, health ──► control plane ──► snapshot store ── weights ──► data planes
//!                                     profiles, HiGHS   directory, http, etcd         kernel plane
//!
//!   client ──► proxy worker ──► engine             the only synchronous path
//! ```
//!
//! Five doors lead into the house. Each room's own documentation goes on from there.
//!
//! 1. [`model`] holds the words: clusters, engines, classes, profiles. [`config`] reads them from a
//!    file, and has every key with its default and its reason.
//! 2. [`plan`] turns them into weights: the linear program, its solution, the check that trusts
//!    neither, the decision to publish, and the explanation. It does no IO and reads no clock.
//! 3. [`control`] runs the control plane: measuring, planning, leading. [`publish`] is the snapshot
//!    and the stores that keep it.
//! 4. [`proxy`] carries a request: parse, route by [`policy`], forward, count; [`io`] has the two
//!    drivers under it. [`dataplane`] gives it snapshots; [`kernel`] steers connections without it.
//! 5. [`admin`] answers operators and Prometheus. [`fit`] makes profiles from measurements, and
//!    [`probe`] reads the metrics of engines.
//!
//! ARCHITECTURE.md has the life of a request, the life of a plan, and the invariants.

pub mod admin;
pub mod backoff;
pub mod clock;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod fit;
pub mod io;
pub mod kernel;
pub mod model;
pub mod numeric;
pub mod plan;
pub mod policy;
pub mod probe;
pub mod protocol;
pub mod proxy;
pub mod publish;
pub mod rng;
pub mod shortage;
pub mod telemetry;
