//! From a request to its class, and to the answers that need no engine.

use serde_json::json;

use super::http1::request::{Method, Request};
use super::payload::{self, Payload};
use super::reply::Problem;
use crate::model::ClassId;
use crate::publish::routes::Routes;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoutingKey {
    pub(super) class: ClassId,
    /// Affinity key, of the best source the request has.
    pub(super) affinity: Option<u64>,
}

/// An answer of ours: content type and body.
pub(super) type Local = (&'static str, Vec<u8>);

/// Answers what is ours to answer; `None` for what goes to engines.
pub(super) fn local(request: &Request, path: &str, routes: Option<&Routes>) -> Option<Result<Local, Problem>> {
    if path == "*" {
        // `OPTIONS *` is about the server as a whole (RFC 9110 9.3.7), which is this one.
        return Some(Ok(("text/plain", Vec::new())));
    }
    if !matches!(request.method, Method::Get | Method::Head) {
        return None;
    }
    match path {
        "/healthz" => Some(Ok(("text/plain", b"ok\n".to_vec()))),
        "/readyz" => Some(routes.map(|_| ("text/plain", b"ready\n".to_vec())).ok_or_else(Problem::not_ready)),
        "/v1/models" => Some(routes.map(models).ok_or_else(Problem::not_ready)),
        _ => {
            let model = path.strip_prefix("/v1/models/")?;
            let routes = match routes {
                Some(routes) => routes,
                None => return Some(Err(Problem::not_ready())),
            };
            Some(match routes.classes_of(model) {
                Some(_) => Ok(("application/json", model_object(model, routes).to_string().into_bytes())),
                None => Err(Problem::model_not_found(model)),
            })
        }
    }
}

fn models(routes: &Routes) -> Local {
    let data: Vec<_> = routes.models().into_iter().map(|model| model_object(model, routes)).collect();
    ("application/json", json!({ "object": "list", "data": data }).to_string().into_bytes())
}

fn model_object(model: &str, routes: &Routes) -> serde_json::Value {
    json!({ "id": model, "object": "model", "created": routes.snapshot.published_unix_ms / 1000, "owned_by": "ilb" })
}

/// Paths whose body is JSON with a model by definition, so that a malformed one is the client's mistake.
const MODEL_PATHS: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/messages/count_tokens",
];

/// Settles class and affinity of a request that goes to an engine.
pub(super) fn routing_key(request: &Request, path: &str, body: &[u8], routes: &Routes) -> Result<RoutingKey, Problem> {
    let payload = match body.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') => payload::scan(body),
        // Not JSON at all, such as a form with an audio file, or nothing.
        _ if MODEL_PATHS.contains(&path) && request.method == Method::Post => payload::scan(body),
        _ => Ok(Payload::default()),
    };
    let payload = match payload {
        Ok(payload) => payload,
        Err(error) if MODEL_PATHS.contains(&path) => return Err(Problem::payload(error)),
        Err(_) => Payload::default(),
    };
    let models;
    let model = match payload.model.as_deref() {
        Some(model) => model,
        None => {
            models = routes.models();
            match models.as_slice() {
                [model] => model,
                _ if request.method == Method::Post => return Err(Problem::no_model()),
                _ => return Err(Problem::not_found(path)),
            }
        }
    };
    let classes = routes.classes_of(model).ok_or_else(|| Problem::model_not_found(model))?;
    let class = class(request, model, classes, routes)?;
    Ok(RoutingKey { class, affinity: request.session.or(payload.affinity) })
}

/// The class of a known model: the one that is named, else the first that promises every tag asked for.
fn class(request: &Request, model: &str, classes: &[ClassId], routes: &Routes) -> Result<ClassId, Problem> {
    let entry = |class: ClassId| &routes.snapshot.classes[class.index()];
    let tags = request.require.as_deref().map(tags).transpose()?.unwrap_or_default();
    let promises = |class: ClassId| tags.iter().all(|&(key, value)| entry(class).require.get(key).is_some_and(|v| v == value));
    let asked = || tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ");
    if let Some(name) = &request.class {
        let named =
            classes.iter().copied().find(|&c| entry(c).name == *name).ok_or_else(|| Problem::class_not_found(name, model))?;
        if !promises(named) {
            return Err(Problem::no_eligible_engine(&format!("{} in class {name:?} of model {model:?}", asked())));
        }
        return Ok(named);
    }
    let found = classes.iter().copied().find(|&c| promises(c));
    found.ok_or_else(|| Problem::no_eligible_engine(&format!("{} for model {model:?}", asked())))
}

/// `key=value, key=value`.
fn tags(text: &str) -> Result<Vec<(&str, &str)>, Problem> {
    (text.split(',').map(str::trim).filter(|part| !part.is_empty()))
        .map(|part| {
            let (key, value) = part.split_once('=').ok_or_else(|| Problem::malformed_require(part))?;
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.is_empty() { Err(Problem::malformed_require(part)) } else { Ok((key, value)) }
        })
        .collect()
}

/// What a class asks of an engine, in words.
pub(super) fn constraint(class: ClassId, routes: &Routes) -> String {
    let class = &routes.snapshot.classes[class.index()];
    let tags: Vec<String> = class.require.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if tags.is_empty() { format!("model {:?}", class.model) } else { format!("{} for model {:?}", tags.join(", "), class.model) }
}

/// Whether an engine keeps something of a request that has reached it, so that it must not be sent a second time.
pub(super) fn is_stateful(path: &str) -> bool {
    ["/v1/files", "/v1/batches", "/v1/uploads", "/v1/fine_tuning", "/v1/vector_stores"].iter().any(|p| path.starts_with(p))
}
