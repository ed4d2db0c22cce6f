//! `ilb`, the inference load balancer, as a library. ARCHITECTURE.md has the map.

pub mod admin;
pub mod clock;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod fit;
pub mod io;
pub mod kernel;
pub mod model;
pub mod plan;
pub mod policy;
pub mod probe;
pub mod proxy;
pub mod publish;
pub mod telemetry;
