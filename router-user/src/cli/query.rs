//! The commands that ask a running ilb.

use std::time::Duration;

use router_user::admin::{AdminClient, ExplainQuery, RollbackRequest, UnpinRequest};
use router_user::control::{OrderRequest, OrderVerb, PinRequest};
use router_user::publish::Generation;
use serde::Serialize;

use super::args::{Ask, Engines, EnginesCommand, Explain, Note, Readmit, Weights, WeightsCommand, Withdraw};
use super::print::print;
use super::socket::Socket;

pub(crate) async fn status(ask: Ask) -> anyhow::Result<()> {
    let status = AdminClient::new(&ask.socket.path).status().await?;
    show(&status, ask.json)
}

pub(crate) async fn engines(args: Engines) -> anyhow::Result<()> {
    let (verb, Withdraw { engine, ttl, force, note }) = match args.command {
        None => {
            let engines = AdminClient::new(&args.ask.socket.path).engines().await?;
            return show(&engines, args.ask.json);
        }
        Some(EnginesCommand::Drain(order)) => (OrderVerb::Drain, order),
        Some(EnginesCommand::Eject(order)) => (OrderVerb::Eject, order),
        Some(EnginesCommand::Undrain(Readmit { engine, note })) => {
            (OrderVerb::Undrain, Withdraw { engine, ttl: None, force: false, note })
        }
        Some(EnginesCommand::Restore(Readmit { engine, note })) => {
            (OrderVerb::Restore, Withdraw { engine, ttl: None, force: false, note })
        }
    };
    let Note { reason, by, socket } = note;
    let done = match verb {
        OrderVerb::Drain => format!("drained, {}", until(ttl, &format!("engines undrain {engine}"))),
        OrderVerb::Eject => format!("ejected, {}", until(ttl, &format!("engines restore {engine}"))),
        OrderVerb::Undrain => "no longer drained; its share grows back".to_owned(),
        OrderVerb::Restore => "restored; its share grows back where it had none".to_owned(),
    };
    let told = format!("{engine} is {done}");
    let request = OrderRequest { engine, order: verb, ttl_ms: ttl.map(ms), reason: reason.unwrap_or_default(), by, force };
    let reply = AdminClient::new(&socket.path).order(&request).await?;
    let generation = reply.generation.map_or("the next plan tells data planes".to_owned(), |it| format!("generation {it}"));
    let shortage = reply.shortage.map_or(String::new(), |shortage| format!("{shortage}\n"));
    print(&format!("{told} ({generation})\n{shortage}"))
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
            print(&format!("set by hand, {}\n", until(ttl, "weights unpin")))
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
        until(ttl, "weights unpin")
    ))
}

fn ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// How long something lasts that `ilb OPPOSITE` takes back.
fn until(ttl: Option<Duration>, opposite: &str) -> String {
    ttl.map_or(format!("until `ilb {opposite}`"), |ttl| format!("for {}", humantime::format_duration(ttl)))
}

fn show(view: &(impl Serialize + std::fmt::Display), json: bool) -> anyhow::Result<()> {
    if json { print(&format!("{}\n", serde_json::to_string_pretty(view)?)) } else { print(&view.to_string()) }
}
