//! Requests about stored objects: where they go, and what their answers teach.

use std::rc::Rc;

use crate::config::ProxyConfig;
use crate::io::Stream;
use crate::model::ClassId;
use crate::policy::Millis;
use crate::proxy::http1::request::{Method, Request};
use crate::proxy::reply::ErrorReply;
use crate::proxy::route::{BodyFacts, RoutingKey};
use crate::proxy::stored::{AnswerWatch, Bounds, Holder, Seen, StoredPath, resolve};
use crate::proxy::worker::Worker;
use crate::publish::routes::Routes;

/// Settles where a request goes.
pub(super) fn route<S: Stream>(
    worker: &Rc<Worker<S>>,
    request: &Request,
    path: &str,
    stored: Option<StoredPath<'_>>,
    facts: BodyFacts<'_>,
    routes: &Routes,
) -> Result<RoutingKey, ErrorReply> {
    let bounds = bounds(&worker.config);
    // Where nothing is remembered, every engine has every object.
    let stored = stored.filter(|_| bounds.max > 0);
    resolve(request, path, stored, facts, routes, |id| worker.plane.holders.lock().find(id, worker.timers.coarse(), bounds))
}

/// What looks for ids in the answer.
pub(super) fn watch<S: Stream>(
    worker: &Rc<Worker<S>>,
    stored: StoredPath<'_>,
    method: Method,
    class: ClassId,
    routes: &Routes,
) -> Option<AnswerWatch> {
    let class = routes.snapshot.classes[class.index()].name.clone();
    (worker.config.max_stored_ids > 0).then(|| AnswerWatch::new(stored, method, class))
}

/// Remembers what an answer of `engine` has shown.
pub(super) fn note<S: Stream>(worker: &Rc<Worker<S>>, seen: Seen, engine: &str, class: &str) {
    match seen {
        Seen::Nothing => {}
        Seen::Made(ids) => {
            let mut holders = worker.plane.holders.lock();
            for id in ids {
                let holder = Holder { engine: engine.to_owned(), class: class.to_owned() };
                holders.note(&id, holder, worker.timers.coarse(), bounds(&worker.config));
            }
        }
        Seen::Deleted(id) => worker.plane.holders.lock().forget(&id),
    }
}

fn bounds(config: &ProxyConfig) -> Bounds {
    Bounds { max: config.max_stored_ids, age: config.stored_id_max_age.as_millis() as Millis }
}
