//! Tests that see the product from outside: its library's public interface, its binary, its sockets
//! and its stores.
//!
//! They are one program, because each program of tests links the whole product. By module:
//!
//! - `admin`: the port and the socket of operators, over a real controller and data plane
//! - `cli`: the binary as people and scripts use it: exit codes, JSON keys, errors
//! - `docs`: the pages of docs/ that are made from the code
//! - `fit`: profiles from measurements whose truth is known
//! - `fit_engine`: an engine under virtual time, for `fit` to measure
//! - `golden`: how golden files are compared and rewritten
//! - `inputs_bursts`: what bursts do to a plan
//! - `inputs_garbage`: data planes and engines that say anything at all
//! - `layers`: the shape of the source: circles, layers, lengths, widths
//! - `plan`: plans against independent oracles and laws, on fleets made by hand and by chance
//! - `ports`: ports that belong to one test
//! - `probe`: asking engines for their signals
//! - `proxy`: the data plane over real sockets, on both IO drivers
//! - `startup`: how `ilb` starts, and what it survives
//! - `store`: snapshots on a disk, behind an endpoint and in a real etcd; processes that are killed
//!
//! CONTRIBUTING.md lists what the tests need and the environment variables that they read.

mod admin;
mod cli;
mod docs;
mod fit;
mod fit_engine;
mod golden;
mod inputs_bursts;
mod inputs_garbage;
mod layers;
mod plan;
mod ports;
mod probe;
mod proxy;
mod startup;
mod store;
