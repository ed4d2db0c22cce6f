//! The commands that ask a running ilb.

use std::time::Duration;

use router_user::admin::{AdminClient, UnpinRequest};
use router_user::clock::unix_ms;
use router_user::control::PinRequest;
use serde::Serialize;

use crate::cli::{Ask, Weights, WeightsCommand};
use crate::offline::print;

pub(crate) async fn status(ask: Ask) -> anyhow::Result<()> {
    let status = AdminClient::new(&ask.socket).status().await?;
    show(&status, ask.json)
}

pub(crate) async fn engines(ask: Ask) -> anyhow::Result<()> {
    let engines = AdminClient::new(&ask.socket).engines().await?;
    show(&engines, ask.json)
}

pub(crate) async fn weights(args: Weights) -> anyhow::Result<()> {
    match args.command {
        None => {
            let weights = AdminClient::new(&args.ask.socket).weights().await?;
            show(&weights, args.ask.json)
        }
        Some(WeightsCommand::Set { cluster, class, weights, ttl, socket }) => {
            let expires = |ttl: Duration| unix_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            let pin = PinRequest { cluster, class, weights, expires_unix_ms: ttl.map(expires) };
            AdminClient::new(&socket).pin(&pin).await?;
            let until =
                ttl.map_or("until `ilb weights unpin`".to_owned(), |ttl| format!("for {}", humantime::format_duration(ttl)));
            print(&format!("set by hand, {until}\n"))
        }
        Some(WeightsCommand::Unpin { cluster, class, socket }) => {
            let count = AdminClient::new(&socket).unpin(&UnpinRequest { cluster, class }).await?;
            print(&format!("{count} taken back\n"))
        }
    }
}

fn show(view: &(impl Serialize + std::fmt::Display), json: bool) -> anyhow::Result<()> {
    if json { print(&format!("{}\n", serde_json::to_string_pretty(view)?)) } else { print(&view.to_string()) }
}
