//! The commands that ask a running ilb.

use std::time::Duration;

use router_user::admin::{AdminClient, ExplainQuery, RollbackRequest, UnpinRequest};
use router_user::control::PinRequest;
use router_user::publish::Generation;
use serde::Serialize;

use super::args::{Ask, Explain, Weights, WeightsCommand};
use super::print::print;
use super::socket::Socket;

pub(crate) async fn status(ask: Ask) -> anyhow::Result<()> {
    let status = AdminClient::new(&ask.socket.path).status().await?;
    show(&status, ask.json)
}

pub(crate) async fn engines(ask: Ask) -> anyhow::Result<()> {
    let engines = AdminClient::new(&ask.socket.path).engines().await?;
    show(&engines, ask.json)
}

pub(crate) async fn explain(args: Explain) -> anyhow::Result<()> {
    let query = ExplainQuery { cluster: args.cluster, class: args.class, engine: args.engine };
    let view = AdminClient::new(&args.ask.socket.path).explain(&query).await?;
    show(&view, args.ask.json)
}

pub(crate) async fn weights(args: Weights) -> anyhow::Result<()> {
    match args.command {
        None => {
            let weights = AdminClient::new(&args.ask.socket.path).weights().await?;
            show(&weights, args.ask.json)
        }
        Some(WeightsCommand::Set { cluster, class, weights, ttl, socket }) => {
            let pin = PinRequest { cluster, class, weights, ttl_ms: ttl.map(ms), ..PinRequest::default() };
            AdminClient::new(&socket.path).pin(&pin).await?;
            print(&format!("set by hand, {}\n", until(ttl)))
        }
        Some(WeightsCommand::Unpin { cluster, class, socket }) => {
            let count = AdminClient::new(&socket.path).unpin(&UnpinRequest { cluster, class }).await?;
            print(&format!("{count} taken back\n"))
        }
    }
}

pub(crate) async fn snapshots(ask: Ask) -> anyhow::Result<()> {
    let snapshots = AdminClient::new(&ask.socket.path).snapshots().await?;
    show(&snapshots, ask.json)
}

pub(crate) async fn rollback(generation: Generation, ttl: Option<Duration>, socket: Socket) -> anyhow::Result<()> {
    let request = RollbackRequest { generation: generation.to_string(), ttl_ms: ttl.map(ms), expires_unix_ms: None };
    let published = AdminClient::new(&socket.path).rollback(&request).await?;
    print(&format!(
        "generation {generation} is published again as {}; its weights hold {}
",
        published.generation,
        until(ttl)
    ))
}

fn ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

fn until(ttl: Option<Duration>) -> String {
    ttl.map_or("until `ilb weights unpin`".to_owned(), |ttl| format!("for {}", humantime::format_duration(ttl)))
}

fn show(view: &(impl Serialize + std::fmt::Display), json: bool) -> anyhow::Result<()> {
    if json { print(&format!("{}\n", serde_json::to_string_pretty(view)?)) } else { print(&view.to_string()) }
}
