//! Where a request goes that may be about a stored object: to the engine that holds the object, or
//! nowhere.

use std::borrow::Cow;
use std::sync::Arc;

use super::holders::Holder;
use super::path::StoredPath;
use crate::model::{ClassId, EngineId};
use crate::proxy::http1::request::{Method, Request};
use crate::proxy::payload::Payload;
use crate::proxy::reply::ErrorReply;
use crate::proxy::route::{self, BodyFacts, RoutingKey};
use crate::publish::routes::Routes;
use crate::publish::snapshot::OrderKind;

/// The object that a request names.
struct Named<'a> {
    id: Cow<'a, str>,
    /// The field of the body that names it; `None` where the path does.
    param: Option<&'static str>,
}

/// Settles class, affinity and holder of a request. `stored` is `None` on a path that is not about
/// stored objects; `find` gives the holder of an object.
///
/// Errors: as [`route::routing_key`]; the engine that holds the object is not known, no longer part
/// of the fleet, or not eligible for the request's class; several engines would have to list what
/// they hold.
pub(in crate::proxy) fn resolve(
    request: &Request,
    path: &str,
    stored: Option<StoredPath<'_>>,
    facts: BodyFacts<'_>,
    routes: &Routes,
    find: impl FnOnce(&str) -> Option<Arc<Holder>>,
) -> Result<RoutingKey, ErrorReply> {
    let settle = |facts, home| route::routing_key(request, path, facts, routes, home);
    let Some(stored) = stored else { return settle(facts, None) };
    let key = match named(request, stored, &facts) {
        Some(Named { id, param }) => match find(&id) {
            Some(holder) => {
                let home = routes.snapshot.classes.iter().position(|class| class.name == holder.class);
                at_holder(settle(facts, home.map(ClassId::of))?, &id, param, &holder, routes)
            }
            None => match settle(facts, None) {
                // Where one engine alone may serve the request, no other can hold the object.
                Ok(key) if routes.classes[key.class.index()].eligible <= 1 => Ok(key),
                // Without the object's class nobody can tell its model.
                Err(problem) if param.is_some() || !problem.lacks_model() => Err(problem),
                _ => Err(ErrorReply::unknown_id(&id, param)),
            },
        },
        None if matches!(request.method, Method::Get | Method::Head) => at_only_engine(settle(facts, None), path, routes),
        None => settle(facts, None),
    };
    key.map(|key| RoutingKey { is_demand: stored.is_demand(request.method), ..key })
}

fn named<'a>(request: &Request, stored: StoredPath<'a>, facts: &BodyFacts<'a>) -> Option<Named<'a>> {
    match (stored, facts) {
        (StoredPath::Object { id, .. }, _) => Some(Named { id: Cow::Borrowed(id), param: None }),
        (StoredPath::Collection { .. }, BodyFacts::Json(Ok(Payload { builds_on: Some(reference), .. })))
            if request.method == Method::Post =>
        {
            Some(Named { id: reference.id.clone(), param: Some(reference.field) })
        }
        _ => None,
    }
}

fn at_holder(
    key: RoutingKey,
    id: &str,
    param: Option<&'static str>,
    holder: &Holder,
    routes: &Routes,
) -> Result<RoutingKey, ErrorReply> {
    let engine = routes.snapshot.engines.iter().position(|engine| engine.name == holder.engine).map(EngineId::of);
    let engine = engine.ok_or_else(|| ErrorReply::holder_gone(id, param, &holder.engine))?;
    if routes.snapshot.engines[engine.index()].is_ordered(OrderKind::Eject) {
        return Err(ErrorReply::holder_ejected(&holder.engine));
    }
    if !routes.classes[key.class.index()].candidates.iter().any(|candidate| candidate.engine == engine) {
        let class = &routes.snapshot.classes[key.class.index()].name;
        return Err(ErrorReply::holder_not_eligible(id, param, &holder.engine, class));
    }
    Ok(RoutingKey { holder: Some(engine), ..key })
}

/// Refuses a list unless one engine has all of it. The list of one engine out of several would look
/// whole.
fn at_only_engine(key: Result<RoutingKey, ErrorReply>, path: &str, routes: &Routes) -> Result<RoutingKey, ErrorReply> {
    let engines = match &key {
        Ok(key) => routes.classes[key.class.index()].eligible,
        Err(problem) if problem.lacks_model() => routes.snapshot.engines.len(),
        Err(_) => return key,
    };
    if engines > 1 { Err(ErrorReply::list_over_engines(path, engines)) } else { key }
}
