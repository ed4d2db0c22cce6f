//! The test world: false engines, distance, open-loop load, and measurements beside other proxies.
//!
//! Nothing here shares code with the data plane: the HTTP reader is its own, so that a fault in the
//! proxy's parser cannot hide behind the same fault in the tool that checks it. What it does share
//! is the model, because a false engine has to follow the same profile that the planner reads.

pub mod clock;
pub mod compare;
pub mod demo;
pub mod engine;
pub mod faults;
pub mod http;
pub mod load;
pub mod net;
pub mod origin;
pub mod plan;
pub mod process;
pub mod real_engine;
pub mod relay;
pub mod sim;
pub mod site;
