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
    let Some(stored) = stored else { return route::routing_key(request, path, facts, routes, None) };
    let is_object = matches!(stored, StoredPath::Object { .. });
    let Some(Named { id, param }) = named(request, stored, &facts) else {
        let key = route::routing_key(request, path, facts, routes, None);
        let is_list = matches!(request.method, Method::Get | Method::Head);
        return if is_list { only_engine(key, path, routes) } else { key };
    };
    let Some(holder) = find(&id) else {
        let unknown = || ErrorReply::unknown_id(&id, param);
        let key = match route::routing_key(request, path, facts, routes, None) {
            // Without the object's class nobody can tell its model.
            Err(_) if is_object && request.class.is_none() && request.require.is_none() => return Err(unknown()),
            key => key?,
        };
        // Where one engine alone may serve the request, nobody else can hold the object.
        let is_only = routes.classes[key.class.index()].candidates.len() <= 1;
        return if is_only { Ok(RoutingKey { is_demand: !is_object, ..key }) } else { Err(unknown()) };
    };
    let home = routes.snapshot.classes.iter().position(|class| class.name == holder.class).map(ClassId::of);
    let key = route::routing_key(request, path, facts, routes, home)?;
    let engine = routes.snapshot.engines.iter().position(|engine| engine.name == holder.engine).map(EngineId::of);
    let engine = engine.ok_or_else(|| ErrorReply::holder_gone(&id, param, &holder.engine))?;
    if !routes.classes[key.class.index()].candidates.iter().any(|candidate| candidate.engine == engine) {
        let class = &routes.snapshot.classes[key.class.index()].name;
        return Err(ErrorReply::holder_not_eligible(&id, param, &holder.engine, class));
    }
    Ok(RoutingKey { holder: Some(engine), is_demand: !is_object, ..key })
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

/// Refuses a list unless one engine has all of it. The list of one engine out of several would look
/// whole.
fn only_engine(key: Result<RoutingKey, ErrorReply>, path: &str, routes: &Routes) -> Result<RoutingKey, ErrorReply> {
    let engines = match &key {
        Ok(key) => routes.classes[key.class.index()].candidates.len(),
        Err(problem) if problem.code == "not_found" => routes.snapshot.engines.len(),
        Err(_) => return key,
    };
    if engines > 1 {
        Err(ErrorReply::list_over_engines(path, engines))
    } else {
        key.map(|key| RoutingKey { is_demand: false, ..key })
    }
}
