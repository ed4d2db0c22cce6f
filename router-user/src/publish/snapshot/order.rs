//! What an operator has ordered of an engine, as controllers keep it and data planes obey it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// An operator's last word on an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineOrder {
    pub kind: OrderKind,
    /// Who gave it.
    pub by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it was given, in ms since the Unix epoch; tells one order from the next.
    pub since_unix_ms: u64,
    /// When it expires, in ms since the Unix epoch; `None` for one that lasts until it is taken
    /// back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// No new requests while another engine can take them; what the engine holds stays reachable.
    Drain,
    /// No requests at all.
    Eject,
    /// It is well: data planes forget what they hold against it.
    Restore,
}

impl OrderKind {
    /// As it is called in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Eject => "eject",
            Self::Restore => "restore",
        }
    }

    /// Whether plans do without the engine.
    pub fn withdraws(self) -> bool {
        self != Self::Restore
    }
}

/// The order in words, without the engine: `drained by alice since … until …: new driver`.
impl fmt::Display for EngineOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match self.kind {
            OrderKind::Drain => "drained",
            OrderKind::Eject => "ejected",
            OrderKind::Restore => "restored",
        };
        let second = |unix_ms: u64| i64::try_from(unix_ms / 1000).ok().and_then(|s| Timestamp::from_second(s).ok());
        write!(f, "{done} by {}", self.by)?;
        if let Some(since) = second(self.since_unix_ms) {
            write!(f, " since {since}")?;
        }
        if let Some(until) = self.until_unix_ms.and_then(second) {
            write!(f, " until {until}")?;
        }
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}
