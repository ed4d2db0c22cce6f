//! Operators' commands: pins, and a rollback to an old generation; `engine_orders` has those about
//! engines. They run one after the other, because each starts from what the one before it left.

use std::sync::Arc;

use crate::control::controller::command::{COMMANDS_WAITING_MOST, Command, CommandError};
use crate::control::controller::task::{Controller, Event, Rollback, Then};
use crate::control::pins::{self, HeldPin, PinRequest};
use crate::publish::snapshot::{Route, Snapshot};
use crate::publish::store::{Document, StoreError};
use crate::publish::{Generation, build};

impl Controller {
    /// Takes a command: reports are counted at once, orders wait for the one before them.
    pub(super) fn on_command(&mut self, command: Command) {
        // The sender may have stopped waiting; the command is carried out all the same.
        match command {
            Command::Report(report, done) => {
                let _ = done.send(self.take_report(&report));
            }
            Command::Resign(done) => {
                let publisher = Arc::clone(&self.publisher);
                self.work.spawn(async move {
                    publisher.lock().await.resign().await;
                    let _ = done.send(Ok(()));
                    Event::Nothing
                });
            }
            order if self.orders.len() < COMMANDS_WAITING_MOST => self.orders.push_back(order),
            order => refuse(order, CommandError::Busy),
        }
    }

    /// Begins the next order, unless one is under way.
    pub(super) fn carry_out_orders(&mut self) {
        while !self.has_order
            && let Some(order) = self.orders.pop_front()
        {
            if let Some(leader) = self.candidacy.standby_reason() {
                refuse(order, CommandError::StandsBy(leader));
                continue;
            }
            match order {
                Command::Pin(pin, done) => match self.pins.with(pin, &self.config.fleet, self.moment()) {
                    Ok(pins) => self.keep_pins(pins, Then::Pinned(done)),
                    Err(error) => refuse(Command::Pin(PinRequest::default(), done), error.into()),
                },
                Command::Unpin { cluster, class, done } => {
                    match self.pins.without(cluster.as_deref(), class.as_deref(), &self.config.fleet) {
                        Ok(kept) if kept.len() == self.pins.len() => _ = done.send(Ok(0)),
                        Ok(kept) => self.keep_pins_without(kept, done),
                        Err(error) => _ = done.send(Err(error.into())),
                    }
                }
                Command::Order(request, done) => self.begin_order(request, done),
                Command::Rollback { generation, ttl, done } => {
                    self.has_order = true;
                    let (archive, rollback) = (self.archive.clone(), Box::new(Rollback { generation, ttl, done }));
                    self.work.spawn(async move {
                        let old = archive.read(generation).await;
                        Event::RollbackRead(rollback, old)
                    });
                }
                other => self.on_command(other),
            }
        }
    }

    fn keep_pins_without(&mut self, kept: Vec<HeldPin>, done: tokio::sync::oneshot::Sender<Result<usize, CommandError>>) {
        let removed = self.pins.len() - kept.len();
        self.keep_pins(kept, Then::Unpinned(removed, done));
    }

    /// Replaces all pins by `pins`: first in etcd for the next leader, then on this disk, then in
    /// memory.
    fn keep_pins(&mut self, pins: Vec<HeldPin>, then: Then) {
        self.has_order = true;
        let json = pins::to_json(&pins, self.moment());
        let (publisher, file) = (Arc::clone(&self.publisher), self.pins.file().to_owned());
        self.work.spawn(async move {
            let kept = publisher.lock().await.keep_document(Document::Pins, file, json).await;
            Event::PinsKept(pins, then, kept.map_err(CommandError::from))
        });
    }

    pub(super) fn on_pins_kept(&mut self, pins: Vec<HeldPin>, then: Then, outcome: Result<(), CommandError>) {
        self.has_order = false;
        if outcome.is_ok() {
            self.pins.set(pins);
            self.revision += 1;
            self.wants_round = true;
        }
        match then {
            Then::Pinned(done) => _ = done.send(outcome),
            Then::Unpinned(removed, done) => _ = done.send(outcome.map(|()| removed)),
            Then::RollBack(rollback, content) => match outcome {
                Ok(()) => {
                    self.has_order = true;
                    let publisher = Arc::clone(&self.publisher);
                    self.work.spawn(async move {
                        let published = publisher.lock().await.publish(*content).await;
                        Event::RolledBack(rollback, published)
                    });
                }
                Err(error) => _ = rollback.done.send(Err(error)),
            },
        }
    }

    /// Pins the weights of an old generation, and then publishes them. Without the pins the next
    /// plan would undo the rollback.
    pub(super) fn on_rollback_read(&mut self, rollback: Box<Rollback>, old: Result<Snapshot, StoreError>) {
        self.has_order = false;
        let fleet = &self.config.fleet;
        let old = match old {
            Ok(old) if build::changes(fleet, &old).is_none() => old,
            Ok(_) => {
                let error = CommandError::OtherFleet(rollback.generation);
                _ = rollback.done.send(Err(error));
                return;
            }
            Err(error) => {
                _ = rollback.done.send(Err(error.into()));
                return;
            }
        };
        let ttl_ms = rollback.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        // A route without weights is shed as a whole, so there is nothing to pin.
        let is_pinned = |route: &Route| !route.weights.is_empty();
        let pin = |route: &Route| PinRequest {
            cluster: fleet.clusters[route.cluster.index()].name.clone(),
            class: fleet.classes[route.class.index()].name.clone(),
            weights: route.weights.iter().map(|s| (fleet.engines[s.engine.index()].name.clone(), s.weight)).collect(),
            ttl_ms,
            expires_unix_ms: None,
        };
        let moment = self.moment();
        let pins = old.routes.iter().filter(|route| is_pinned(route)).map(|route| HeldPin::of(pin(route), moment)).collect();
        let routes = old.routes.iter().map(|route| Route { pinned: is_pinned(route), ..route.clone() }).collect();
        let reason = format!("rolled back to generation {}", rollback.generation);
        let content = Snapshot { reason, routes, target_clusters: Vec::new(), ..old };
        self.keep_pins(pins, Then::RollBack(rollback, Box::new(content)));
    }

    pub(super) fn on_rolled_back(&mut self, rollback: Rollback, outcome: Result<Arc<Snapshot>, StoreError>) {
        self.has_order = false;
        self.wants_round = true;
        if let Ok(published) = &outcome {
            self.status.published += 1;
            tracing::info!(from = %rollback.generation, generation = %Generation(published.generation), "rolled back");
        }
        let _ = rollback.done.send(outcome.map(|published| published.generation).map_err(CommandError::from));
    }
}

/// Refuses an order. The sender may have stopped waiting.
fn refuse(order: Command, error: CommandError) {
    match order {
        Command::Report(_, done) | Command::Pin(_, done) | Command::Resign(done) => _ = done.send(Err(error)),
        Command::Unpin { done, .. } => _ = done.send(Err(error)),
        Command::Order(_, done) => _ = done.send(Err(error)),
        Command::Rollback { done, .. } => _ = done.send(Err(error)),
    }
}
