//! Routing: the class and the affinity key of a request, and the answers that need no engine.

use std::borrow::Cow;

use router_common::slot::mix64;
use serde_json::json;

use super::form::{self, FormModel, FormScan};
use super::http1::request::{Method, Request};
use super::payload::{self, Payload, PayloadError};
use super::plane::DataPlane;
use super::reply::ErrorReply;
use crate::model::{ClassId, EngineId};
use crate::publish::routes::Routes;

/// The class that serves a request, and the key that decides which of its engines does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoutingKey {
    pub(super) class: ClassId,
    /// From the best source that the request has.
    pub(super) affinity: Option<u64>,
    /// The engine that holds what the request is about or builds on. No other may get it, whatever
    /// becomes of the holder.
    pub(super) holder: Option<EngineId>,
    /// The request asks a model for work: to look at a stored object, or to send a file, is no
    /// demand.
    pub(super) is_demand: bool,
    /// The answer is asked for as a stream.
    pub(super) is_stream: bool,
    /// The user, among whom the queue is fair, by API key and name; `None` without either.
    pub(super) user: Option<u64>,
}

/// An answer that is made here: content type and body.
pub(super) type Local = (&'static str, Vec<u8>);

/// Whether a request asks how this data plane is.
pub(super) fn is_health(request: &Request, path: &str) -> bool {
    matches!(request.method, Method::Get | Method::Head) && matches!(path, "/healthz" | "/readyz")
}

/// Answers a request that needs no engine; `None` for any other.
pub(super) fn local(
    request: &Request,
    path: &str,
    routes: Option<&Routes>,
    plane: &DataPlane,
) -> Option<Result<Local, ErrorReply>> {
    if path == "*" {
        // `OPTIONS *` is about the server as a whole (RFC 9110 9.3.7), and this is the server.
        return Some(Ok(("text/plain", Vec::new())));
    }
    if !matches!(request.method, Method::Get | Method::Head) {
        return None;
    }
    match path {
        "/healthz" => Some(Ok(("text/plain", b"ok\n".to_vec()))),
        "/readyz" => Some(match (routes, plane.readiness()) {
            (None, _) => Err(ErrorReply::not_ready()),
            (Some(_), Err(reason)) => Err(ErrorReply::unready(reason)),
            (Some(_), Ok(())) => Ok(("text/plain", b"ready\n".to_vec())),
        }),
        "/v1/models" => Some(routes.map(models).ok_or_else(ErrorReply::not_ready)),
        _ => {
            let model = path.strip_prefix("/v1/models/")?;
            let routes = match routes {
                Some(routes) => routes,
                None => return Some(Err(ErrorReply::not_ready())),
            };
            Some(match routes.classes_of(model) {
                Some(_) => Ok(("application/json", model_object(model, routes).to_string().into_bytes())),
                None => Err(ErrorReply::model_not_found(model)),
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

/// Paths whose requests have a JSON body with a model. A malformed body is the client's mistake
/// there.
const MODEL_PATHS: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/messages/count_tokens",
];

/// Bytes of a body that are looked at before other connections get their turn: at most 1 ms, at the
/// 15 ns per byte of the slowest JSON.
const SLICE_BYTES: usize = 64 << 10;

/// The parts of a body that routing needs, while they are looked for.
pub(super) enum BodyScan<'a> {
    Json(payload::Scan<'a>),
    Form(FormScan<'a>),
    /// The body is compressed.
    Encoded,
}

/// The parts of a body that routing needs.
pub(super) enum BodyFacts<'a> {
    Json(Result<Payload<'a>, PayloadError>),
    Form(FormModel<'a>),
    /// The body is compressed, and was not looked at.
    Encoded,
}

impl<'a> BodyScan<'a> {
    pub(super) fn new(request: &Request, path: &str, content_type: &[u8], body: &'a [u8]) -> Self {
        if request.is_encoded && !body.is_empty() {
            return Self::Encoded;
        }
        match form::boundary(content_type) {
            Some(boundary) if !MODEL_PATHS.contains(&path) => Self::Form(FormScan::new(body, boundary)),
            _ => Self::Json(payload::Scan::new(body)),
        }
    }

    /// Goes on for one slice; `None` while there is more to look at.
    pub(super) fn advance(&mut self) -> Option<BodyFacts<'a>> {
        match self {
            Self::Json(scan) => scan.advance(SLICE_BYTES).transpose().map(BodyFacts::Json),
            Self::Form(scan) => scan.advance(SLICE_BYTES).map(BodyFacts::Form),
            Self::Encoded => Some(BodyFacts::Encoded),
        }
    }
}

/// Settles class and affinity of a request that goes to an engine. `home` is the class of the
/// stored object that the request names; it stands in for what the request does not say.
pub(super) fn routing_key(
    request: &Request,
    path: &str,
    facts: BodyFacts<'_>,
    routes: &Routes,
    home: Option<ClassId>,
) -> Result<RoutingKey, ErrorReply> {
    let is_encoded = matches!(facts, BodyFacts::Encoded);
    let payload = match facts {
        BodyFacts::Json(Ok(payload)) => payload,
        BodyFacts::Json(Err(error)) if MODEL_PATHS.contains(&path) && request.method == Method::Post => {
            return Err(ErrorReply::payload(error));
        }
        // Something else than JSON, or nothing.
        BodyFacts::Json(Err(_)) | BodyFacts::Form(FormModel::None) | BodyFacts::Encoded => Payload::default(),
        BodyFacts::Form(FormModel::One(model)) => Payload { model: Some(Cow::Borrowed(model)), ..Payload::default() },
        BodyFacts::Form(FormModel::Unclear) => return Err(ErrorReply::unclear_model()),
    };
    let affinity = request.session.or(payload.affinity);
    let is_stream = payload.is_stream;
    // Names are told apart by API key: every key may have a user 1.
    let user = match (request.credential, payload.user.or(request.session)) {
        (Some(credential), Some(name)) => Some(mix64(credential ^ name.rotate_left(32))),
        (credential, name) => credential.or(name),
    };
    let key = |class| RoutingKey { class, affinity, holder: None, is_demand: true, is_stream, user };
    let models;
    let model = match (payload.model.as_deref().or_else(|| model_of_named_class(request, routes)), home) {
        (Some(model), _) => model,
        (None, Some(home)) if request.class.is_none() && request.require.is_none() => return Ok(key(home)),
        (None, Some(home)) => &routes.snapshot.classes[home.index()].model,
        (None, None) => {
            models = routes.models();
            match models.as_slice() {
                [model] => model,
                _ if is_encoded => return Err(ErrorReply::encoded_body()),
                _ if request.method == Method::Post => return Err(ErrorReply::no_model()),
                _ => return Err(ErrorReply::not_found(path)),
            }
        }
    };
    let classes = routes.classes_of(model).ok_or_else(|| ErrorReply::model_not_found(model))?;
    let class = class(request, model, classes, routes)?;
    Ok(key(class))
}

/// The model of the class that a request names. It says which model is meant where the body cannot,
/// as when a file is sent.
fn model_of_named_class<'r>(request: &Request, routes: &'r Routes) -> Option<&'r str> {
    let name = request.class.as_ref()?;
    routes.snapshot.classes.iter().find(|class| class.name == *name).map(|class| &*class.model)
}

/// The class of a known model: the named one, else the first with every tag that is asked for.
fn class(request: &Request, model: &str, classes: &[ClassId], routes: &Routes) -> Result<ClassId, ErrorReply> {
    let entry = |class: ClassId| &routes.snapshot.classes[class.index()];
    let tags = request.require.as_deref().map(tags).transpose()?.unwrap_or_default();
    let promises = |class: ClassId| tags.iter().all(|&(key, value)| entry(class).require.get(key).is_some_and(|v| v == value));
    let asked = || tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ");
    if let Some(name) = &request.class {
        let named =
            classes.iter().copied().find(|&c| entry(c).name == *name).ok_or_else(|| ErrorReply::class_not_found(name, model))?;
        if !promises(named) {
            return Err(ErrorReply::no_eligible_engine(&asked(), Some(name), model));
        }
        return Ok(named);
    }
    let found = classes.iter().copied().find(|&c| promises(c));
    found.ok_or_else(|| ErrorReply::no_eligible_engine(&asked(), None, model))
}

/// `key=value, key=value`.
fn tags(text: &str) -> Result<Vec<(&str, &str)>, ErrorReply> {
    (text.split(',').map(str::trim).filter(|part| !part.is_empty()))
        .map(|part| {
            let (key, value) = part.split_once('=').ok_or_else(|| ErrorReply::malformed_require(part))?;
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.is_empty() { Err(ErrorReply::malformed_require(part)) } else { Ok((key, value)) }
        })
        .collect()
}

/// The refusal of a class that no engine of the routes may serve.
pub(super) fn no_eligible_engine(class: ClassId, routes: &Routes) -> ErrorReply {
    let has_ejected = routes.classes[class.index()].eligible > 0;
    let class = &routes.snapshot.classes[class.index()];
    if has_ejected {
        return ErrorReply::engines_ejected(&class.model);
    }
    let tags: Vec<String> = class.require.iter().map(|(key, value)| format!("{key}={value}")).collect();
    ErrorReply::no_eligible_engine(&tags.join(", "), None, &class.model)
}

/// Whether 404 on `path` means that the engine does not have the model. On the other paths the
/// engine may lack the path, or what an earlier request has left.
pub(super) fn is_missing_model(path: &str) -> bool {
    MODEL_PATHS[..3].contains(&path) || path == "/v1/messages"
}
