//! Orders about engines: checked, kept, told to data planes at once, and then planned with.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::control::controller::command::{CommandError, PendingOrder};
use crate::control::controller::task::{Controller, Event};
use crate::control::engine_orders::{self, OrderError, OrderReply, OrderRequest, OrderVerb};
use crate::plan::decide::regions::engine_shortage;
use crate::publish::Generation;
use crate::publish::store::Document;

/// Longest time that an order waits for the check of what it leaves without capacity. An engine
/// that must go does not wait for a large linear program.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

impl Controller {
    pub(super) fn begin_order(&mut self, request: OrderRequest, done: oneshot::Sender<Result<OrderReply, CommandError>>) {
        let moment = self.moment();
        let orders = match self.engine_orders.with(&request, &self.config.fleet, moment) {
            Ok(orders) => orders,
            Err(error) => {
                let _ = done.send(Err(error.into()));
                return;
            }
        };
        self.has_order = true;
        let withdraws = matches!(request.order, OrderVerb::Drain | OrderVerb::Eject);
        let engine = self.config.fleet.engine(&request.engine).filter(|_| withdraws);
        let current = self.current_weights();
        let (inputs, config) = (self.inputs(current.as_deref()), Arc::clone(&self.config));
        let check = engine.map(|engine| tokio::task::spawn_blocking(move || engine_shortage(&config.fleet, &inputs, engine)));
        let (json, marks) = (engine_orders::to_json(&orders, moment), engine_orders::marks(&orders));
        let (publisher, file, marked) =
            (Arc::clone(&self.publisher), self.engine_orders.file().to_owned(), self.engine_orders.marks());
        self.work.spawn(async move {
            let shortage = match check {
                Some(check) => tokio::time::timeout(CHECK_TIMEOUT, check).await.ok().and_then(Result::ok).flatten(),
                None => None,
            };
            let pending = Box::new(PendingOrder { request, orders, done });
            if let Some(shortage) = shortage.clone().filter(|_| !pending.request.force) {
                return Event::Ordered(pending, Err(OrderError::Shortage { shortage }.into()));
            }
            let mut publisher = publisher.lock().await;
            if let Err(error) = publisher.keep_document(Document::Orders, file, json).await {
                return Event::Ordered(pending, Err(error.into()));
            }
            *marked.lock() = marks;
            let OrderRequest { engine, order, .. } = &pending.request;
            let reason = format!("the weights stay; an operator orders: {} {engine}", order.name());
            let published = publisher.publish_marks(reason).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "an order is kept, and not published yet");
                None
            });
            let generation = published.map(|snapshot| Generation(snapshot.generation));
            Event::Ordered(pending, Ok(OrderReply { generation, shortage }))
        });
    }

    pub(super) fn on_ordered(&mut self, pending: PendingOrder, outcome: Result<OrderReply, CommandError>) {
        self.has_order = false;
        let PendingOrder { request, orders, done } = pending;
        if let Ok(reply) = &outcome {
            let OrderRequest { engine, order, by, reason, .. } = request;
            tracing::warn!(engine, order = order.name(), by, reason, shortage = reply.shortage, "an operator's order");
            self.engine_orders.set(orders);
            if let (OrderVerb::Undrain | OrderVerb::Restore, Some(engine)) = (order, self.config.fleet.engine(&engine)) {
                self.measured.forget_outcomes(engine);
            }
            self.revision += 1;
            self.wants_round = true;
            self.status.published += u64::from(reply.generation.is_some());
            self.publish_status();
        }
        let _ = done.send(outcome);
    }
}
