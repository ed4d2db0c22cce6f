//! `ilb`, the inference load balancer, as a library. ARCHITECTURE.md has the map.

pub mod model;
pub mod publish;
