//! `ilb`, the inference load balancer, as a library. ARCHITECTURE.md has the map.

pub mod config;
pub mod model;
pub mod plan;
pub mod publish;
