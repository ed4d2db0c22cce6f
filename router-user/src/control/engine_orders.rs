//! What operators have ordered of engines: one order per engine, the last one. It lasts until it
//! expires or is taken back, also across a restart of the controller. Pure, but for the file that
//! it is read from.
//!
//! Ends are times of the monotonic clock within a process, as those of pins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::suggest;
use crate::control::leadership::publisher::Marks;
use crate::control::pins::{Moment, time_left};
use crate::model::Fleet;
use crate::plan::Pin;
use crate::publish::Generation;
use crate::publish::snapshot::{EngineOrder, OrderKind};
use crate::publish::store::Document;

/// Longest reason and name, in bytes: they are part of every snapshot and of a table for people.
const TEXT_MOST: usize = 200;

/// An order as an operator writes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderRequest {
    pub engine: String,
    pub order: OrderVerb,
    /// How long a drain or an eject lasts, in ms; without it, until it is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    #[serde(default)]
    pub reason: String,
    /// Who orders it.
    #[serde(default)]
    pub by: String,
    /// Also if demand is left without capacity.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderVerb {
    Drain,
    /// Takes a drain back.
    Undrain,
    Eject,
    /// Takes an eject back, and lets data planes forget what they hold against the engine.
    Restore,
}

impl OrderVerb {
    /// As it is called in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Undrain => "undrain",
            Self::Eject => "eject",
            Self::Restore => "restore",
        }
    }
}

/// The answer to an order that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderReply {
    /// The snapshot that tells data planes of it; `None` if the next plan does.
    pub generation: Option<Generation>,
    /// What it leaves without capacity.
    pub shortage: Option<String>,
}

/// Why an order is refused.
#[derive(Debug, Error)]
pub enum OrderError {
    #[error("unknown engine {name:?}{hint}")]
    Engine { name: String, hint: String },
    #[error("engine {0:?} is not drained")]
    NotDrained(String),
    #[error("engine {0:?} is drained; wanted `ilb engines undrain {0}`")]
    Drained(String),
    #[error("engine {0:?} is ejected, which is more; wanted `ilb engines restore {0}` first")]
    Ejected(String),
    #[error("only a drain and an eject last for a time")]
    Ttl,
    #[error("{what} has {found} bytes or control characters; wanted at most {TEXT_MOST} bytes of text")]
    Text { what: &'static str, found: usize },
    #[error("{shortage}; with --force it is done all the same")]
    Shortage { shortage: String },
    #[error("orders of the last leader: {0}")]
    Json(#[from] serde_json::Error),
}

/// An order in its stored form.
#[derive(Debug, Serialize, Deserialize)]
struct StoredOrder {
    engine: String,
    #[serde(flatten)]
    order: EngineOrder,
    /// What is left of it, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
}

/// An active order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeldOrder {
    engine: String,
    order: EngineOrder,
    /// When it ends, by the monotonic clock.
    ends: Option<Duration>,
}

/// All orders, with the file that keeps them.
#[derive(Debug)]
pub(super) struct EngineOrders {
    file: PathBuf,
    orders: Vec<HeldOrder>,
    /// The same orders as the publisher sees them.
    marks: Marks,
}

impl EngineOrders {
    /// Reads the orders that were given before. Those of unknown engines are dropped with a
    /// warning.
    pub(super) fn load(dir: &Path, fleet: &Fleet, moment: Moment, marks: Marks) -> Self {
        let file = dir.join(Document::Orders.name()).with_extension("json");
        let mut orders = Self { file, orders: Vec::new(), marks };
        if let Ok(json) = std::fs::read(&orders.file)
            && let Err(error) = orders.adopt(&json, fleet, moment)
        {
            tracing::warn!(file = %orders.file.display(), %error, "orders cannot be read; going on without them");
        }
        orders
    }

    /// All orders with the requested one in the place of an earlier one of the same engine; to be
    /// [set](Self::set).
    ///
    /// Errors: it does not fit the fleet or the engine's last order.
    pub(super) fn with(&self, request: &OrderRequest, fleet: &Fleet, moment: Moment) -> Result<Vec<HeldOrder>, OrderError> {
        let OrderRequest { engine, order, ttl_ms, reason, by, .. } = request;
        if fleet.engine(engine).is_none() {
            return Err(unknown_engine(engine, fleet));
        }
        let last = self.orders.iter().find(|held| held.engine == *engine).map(|held| held.order.kind);
        let kind = match (order, last) {
            (OrderVerb::Drain, Some(OrderKind::Eject)) => return Err(OrderError::Ejected(engine.clone())),
            (OrderVerb::Drain, _) => Some(OrderKind::Drain),
            (OrderVerb::Undrain, Some(OrderKind::Drain)) => None,
            (OrderVerb::Undrain, _) => return Err(OrderError::NotDrained(engine.clone())),
            (OrderVerb::Eject, _) => Some(OrderKind::Eject),
            (OrderVerb::Restore, Some(OrderKind::Drain)) => return Err(OrderError::Drained(engine.clone())),
            (OrderVerb::Restore, _) => Some(OrderKind::Restore),
        };
        if ttl_ms.is_some() && !kind.is_some_and(OrderKind::withdraws) {
            return Err(OrderError::Ttl);
        }
        for (what, text) in [("the reason", reason), ("the name of who orders it", by)] {
            if text.len() > TEXT_MOST || text.chars().any(char::is_control) {
                return Err(OrderError::Text { what, found: text.len() });
            }
        }
        let mut orders: Vec<HeldOrder> = self.orders.iter().filter(|held| held.engine != *engine).cloned().collect();
        orders.extend(kind.map(|kind| HeldOrder {
            engine: engine.clone(),
            order: EngineOrder {
                kind,
                by: if by.is_empty() { "unknown".to_owned() } else { by.clone() },
                reason: reason.clone(),
                since_unix_ms: moment.unix_ms,
                until_unix_ms: ttl_ms.map(|ttl_ms| moment.unix_ms.saturating_add(ttl_ms)),
            },
            ends: ttl_ms.map(|ttl_ms| moment.now.saturating_add(Duration::from_millis(ttl_ms))),
        }));
        Ok(orders)
    }

    /// Deletes the orders that have expired.
    pub(super) fn expire(&mut self, now: Duration) {
        let is_over = |held: &HeldOrder| held.ends.is_some_and(|end| end <= now);
        if self.orders.iter().any(is_over) {
            self.orders.retain(|held| !is_over(held));
            self.mark();
        }
    }

    /// Which engines plans do without, by engine.
    pub(super) fn withdrawn(&self, fleet: &Fleet) -> Vec<bool> {
        let is_withdrawn = |name: &str| self.of(name).is_some_and(|order| order.kind.withdraws());
        fleet.engines.iter().map(|engine| is_withdrawn(&engine.name)).collect()
    }

    pub(super) fn of(&self, engine: &str) -> Option<&EngineOrder> {
        self.orders.iter().find(|held| held.engine == engine).map(|held| &held.order)
    }

    /// Where orders are kept on this disk.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn all(&self) -> &[HeldOrder] {
        &self.orders
    }

    pub(super) fn marks(&self) -> Marks {
        Marks::clone(&self.marks)
    }

    /// Puts `orders`, which are [kept](Self::file) already, in the place of all.
    pub(super) fn set(&mut self, orders: Vec<HeldOrder>) {
        self.orders = orders;
        self.mark();
    }

    /// Takes over orders in their stored form, for what is left of them.
    ///
    /// Errors: they cannot be read; then nothing changes.
    pub(super) fn adopt(&mut self, json: &[u8], fleet: &Fleet, moment: Moment) -> Result<(), OrderError> {
        let stored: Vec<StoredOrder> = serde_json::from_slice(json)?;
        let known = stored.into_iter().filter(|stored| {
            let is_known = fleet.engine(&stored.engine).is_some();
            if !is_known {
                tracing::warn!(engine = stored.engine, "dropping a stored order about an unknown engine");
            }
            is_known
        });
        let held = known.map(|StoredOrder { engine, order, ttl_ms }| {
            let left = time_left(ttl_ms, order.until_unix_ms, moment.unix_ms);
            HeldOrder { engine, order, ends: left.map(|left| moment.now.saturating_add(left)) }
        });
        self.set(held.collect());
        Ok(())
    }

    fn mark(&self) {
        *self.marks.lock() = marks(&self.orders);
    }
}

/// Orders by engine.
pub(super) fn marks(orders: &[HeldOrder]) -> BTreeMap<String, EngineOrder> {
    orders.iter().map(|held| (held.engine.clone(), held.order.clone())).collect()
}

/// Orders in their stored form.
pub(super) fn to_json(orders: &[HeldOrder], moment: Moment) -> Vec<u8> {
    let stored = |held: &HeldOrder| StoredOrder {
        engine: held.engine.clone(),
        order: held.order.clone(),
        ttl_ms: held.ends.map(|end| u64::try_from(end.saturating_sub(moment.now).as_millis()).unwrap_or(u64::MAX)),
    };
    let stored: Vec<StoredOrder> = orders.iter().map(stored).collect();
    serde_json::to_vec_pretty(&stored).expect("orders have only strings and whole numbers")
}

/// Pins without the engines that are withdrawn; a pin that has no other engine is left out.
pub(super) fn without_withdrawn(mut pins: Vec<Pin>, withdrawn: &[bool]) -> Vec<Pin> {
    pins.iter_mut().for_each(|pin| pin.weights.retain(|(engine, _)| !withdrawn[engine.index()]));
    pins.retain(|pin| pin.weights.iter().any(|&(_, weight)| weight > 0.0));
    pins
}

fn unknown_engine(name: &str, fleet: &Fleet) -> OrderError {
    let known = || fleet.engines.iter().map(|engine| engine.name.as_str());
    let mut hint = suggest(name, known());
    if hint.is_empty() {
        let more = fleet.engines.len().saturating_sub(NAMES_MOST);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        hint = format!("; wanted one of {}{more}", known().take(NAMES_MOST).collect::<Vec<_>>().join(", "));
    }
    OrderError::Engine { name: name.to_owned(), hint }
}

/// Most names of engines in an error.
const NAMES_MOST: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClassId, ClusterId, EngineId};

    fn fleet() -> Fleet {
        crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet
    }

    fn at(now_ms: u64, unix_ms: u64) -> Moment {
        Moment { now: Duration::from_millis(now_ms), unix_ms }
    }

    fn request(engine: &str, order: OrderVerb, ttl_ms: Option<u64>) -> OrderRequest {
        let text = |text: &str| text.to_owned();
        OrderRequest { engine: text(engine), order, ttl_ms, reason: text("new driver"), by: text("alice"), force: false }
    }

    fn load(dir: &Path, moment: Moment) -> EngineOrders {
        EngineOrders::load(dir, &fleet(), moment, Marks::default())
    }

    /// Keeps orders as the controller does.
    fn give(orders: &mut EngineOrders, request: &OrderRequest, moment: Moment) {
        let all = orders.with(request, &fleet(), moment).expect("legal");
        crate::publish::store::write_whole(orders.file(), &to_json(&all, moment)).expect("stored");
        orders.set(all);
    }

    #[test]
    fn an_order_survives_a_restart_for_what_is_left_of_it_wherever_the_wall_clock_goes() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut orders = load(dir.path(), at(1_000, 500_000));
        give(&mut orders, &request("e1", OrderVerb::Eject, Some(8_000)), at(1_000, 500_000));
        give(&mut orders, &request("e2", OrderVerb::Drain, None), at(1_000, 500_000));
        assert_eq!(orders.withdrawn(&fleet()), [true, true, false]);
        for (unix_ms, left_ms) in [(503_000, 5_000), (100_000, 8_000), (900_000, 0)] {
            let mut next = load(dir.path(), at(0, unix_ms));
            let marked = next.marks().lock().get("e1").cloned().expect("marked");
            assert_eq!((marked.since_unix_ms, marked.until_unix_ms), (500_000, Some(508_000)));
            next.expire(Duration::from_millis(left_ms).saturating_sub(Duration::from_millis(1)));
            assert!(left_ms == 0 || next.withdrawn(&fleet())[0], "{unix_ms}");
            next.expire(Duration::from_millis(left_ms));
            assert_eq!(next.withdrawn(&fleet()), [false, true, false], "{unix_ms}");
            assert_eq!(next.marks().lock().keys().collect::<Vec<_>>(), ["e2"]);
        }
    }

    #[test]
    fn the_last_order_counts_and_is_taken_back_by_its_opposite() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut orders = load(dir.path(), at(0, 1));
        let kind = |orders: &EngineOrders| orders.of("e1").map(|order| order.kind);
        for (order, kept) in [
            (OrderVerb::Drain, Some(OrderKind::Drain)),
            (OrderVerb::Undrain, None),
            (OrderVerb::Drain, Some(OrderKind::Drain)),
            (OrderVerb::Eject, Some(OrderKind::Eject)),
            (OrderVerb::Restore, Some(OrderKind::Restore)),
            (OrderVerb::Drain, Some(OrderKind::Drain)),
        ] {
            give(&mut orders, &request("e1", order, None), at(0, 1));
            assert_eq!(kind(&orders), kept);
            assert_eq!(orders.withdrawn(&fleet())[0], kept.is_some_and(OrderKind::withdraws));
        }
        assert_eq!(orders.of("e1").expect("drained").to_string(), "drained by alice since 1970-01-01T00:00:00Z: new driver");
    }

    #[test]
    fn what_cannot_be_done_is_refused_in_words_that_name_what_can() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut orders = load(dir.path(), at(0, 1));
        give(&mut orders, &request("e1", OrderVerb::Drain, None), at(0, 1));
        give(&mut orders, &request("e2", OrderVerb::Eject, None), at(0, 1));
        let long = OrderRequest { reason: "x".repeat(201), ..request("e3", OrderVerb::Drain, None) };
        let colourful = OrderRequest { by: "\u{1b}[31m".to_owned(), ..request("e3", OrderVerb::Drain, None) };
        for (wrong, wanted) in [
            (request("e33", OrderVerb::Drain, None), "unknown engine \"e33\"; did you mean \"e3\"?"),
            (request("gpu", OrderVerb::Eject, None), "unknown engine \"gpu\"; wanted one of e1, e2, e3"),
            (request("e3", OrderVerb::Undrain, None), "engine \"e3\" is not drained"),
            (request("e2", OrderVerb::Undrain, None), "engine \"e2\" is not drained"),
            (request("e1", OrderVerb::Restore, None), "engine \"e1\" is drained; wanted `ilb engines undrain e1`"),
            (request("e2", OrderVerb::Drain, None), "engine \"e2\" is ejected, which is more"),
            (request("e3", OrderVerb::Restore, Some(1)), "only a drain and an eject last for a time"),
            (long, "the reason has 201 bytes"),
            (colourful, "the name of who orders it has 5 bytes or control characters"),
        ] {
            let error = orders.with(&wrong, &fleet(), at(0, 1)).expect_err(wanted).to_string();
            assert!(error.starts_with(wanted), "{error:?}, wanted {wanted:?}");
        }
        assert!(orders.adopt(b"[{}]", &fleet(), at(0, 1)).is_err());
        assert_eq!(orders.all().len(), 2, "nothing changes");
    }

    #[test]
    fn pins_do_without_engines_that_are_withdrawn() {
        let pin = |weights: &[(u16, f64)]| Pin {
            cluster: ClusterId(0),
            class: ClassId(0),
            weights: weights.iter().map(|&(engine, weight)| (EngineId(engine), weight)).collect(),
        };
        let pins = vec![pin(&[(0, 0.5), (1, 0.5)]), pin(&[(0, 1.0), (1, 0.0)]), pin(&[(2, 1.0)])];
        let left = without_withdrawn(pins, &[true, false, false]);
        assert_eq!(left, [pin(&[(1, 0.5)]), pin(&[(2, 1.0)])]);
    }
}
