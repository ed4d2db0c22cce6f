//! Paths of stored objects.
//!
//! Sources: OpenAI's API reference; vLLM's and SGLang's servers, which have `/v1/responses`,
//! `/v1/files`, `/v1/batches` and `/v1/videos`; Anthropic's API reference for
//! `/v1/messages/batches`; SGLang's gateway for `/v1/conversations`.

use crate::proxy::http1::request::Method;

/// The collections of objects, by their path behind `/v1/`, and the segments below that are no ids.
const COLLECTIONS: [(&str, &[&str]); 9] = [
    ("responses", &["compact", "input_tokens"]),
    ("conversations", &[]),
    ("files", &[]),
    ("batches", &[]),
    ("uploads", &[]),
    ("vector_stores", &[]),
    ("fine_tuning/jobs", &[]),
    ("messages/batches", &[]),
    ("videos", &["characters", "edits", "extensions", "sync"]),
];

/// Paths below an object whose answers are the object itself. Others answer with what clients have
/// sent, such as a file's content, and an id in there proves nothing.
const OF_OBJECT: [&str; 4] = ["", "cancel", "complete", "parts"];

/// What a path is about, where it is about stored objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum StoredPath<'p> {
    /// All objects of a collection; a POST makes a new one.
    Collection { name: &'static str },
    /// One object, and what follows its id.
    Object { name: &'static str, id: &'p str, below: &'p str },
}

impl<'p> StoredPath<'p> {
    /// Reads a percent-decoded path.
    pub(in crate::proxy) fn of(path: &'p str) -> Option<Self> {
        let rest = path.strip_prefix("/v1/")?;
        let first = rest.as_bytes().first();
        // Most requests are about none of them, which their first letter tells.
        COLLECTIONS.iter().filter(|(name, _)| name.as_bytes().first() == first).find_map(|&(name, words)| {
            let below = rest.strip_prefix(name)?;
            if below.is_empty() {
                return Some(Self::Collection { name });
            }
            let below = below.strip_prefix('/')?;
            let (id, below) = below.split_once('/').unwrap_or((below, ""));
            let is_word = id.is_empty() || words.contains(&id);
            Some(if is_word { Self::Collection { name } } else { Self::Object { name, id, below } })
        })
    }

    /// Whether the engine may have done what was asked although no answer came, so that the request
    /// must not be sent twice. A response that nobody has read hurts no one.
    pub(in crate::proxy) fn keeps_result(self, method: Method) -> bool {
        let reads = matches!(method, Method::Get | Method::Head);
        !reads && self != Self::Collection { name: "responses" }
    }

    /// Whether a request asks a model for work.
    pub(super) fn is_demand(self, method: Method) -> bool {
        let makes = ["responses", "batches", "messages/batches", "videos"];
        method == Method::Post && matches!(self, Self::Collection { name } if makes.contains(&name))
    }

    /// Whether the answer to a request of `method` names objects that the engine holds.
    pub(super) fn shows_ids(self, method: Method) -> bool {
        match self {
            Self::Collection { .. } => method == Method::Post,
            Self::Object { below, .. } => matches!(method, Method::Get | Method::Post) && OF_OBJECT.contains(&below),
        }
    }

    /// Whether the objects of this path name further ones: a batch its result, an upload its file.
    pub(super) fn names_others(self) -> bool {
        let (Self::Collection { name } | Self::Object { name, .. }) = self;
        matches!(name, "batches" | "uploads")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_collections_and_of_objects() {
        let object = |name, id, below| Some(StoredPath::Object { name, id, below });
        let collection = |name| Some(StoredPath::Collection { name });
        for (path, expected) in [
            ("/v1/responses", collection("responses")),
            ("/v1/responses/", collection("responses")),
            ("/v1/responses/compact", collection("responses")),
            ("/v1/responses/resp_1", object("responses", "resp_1", "")),
            ("/v1/responses/resp_1/cancel", object("responses", "resp_1", "cancel")),
            ("/v1/responses/resp_1/input_items", object("responses", "resp_1", "input_items")),
            ("/v1/files/file-1/content", object("files", "file-1", "content")),
            ("/v1/vector_stores/vs_1/files/file-1", object("vector_stores", "vs_1", "files/file-1")),
            ("/v1/fine_tuning/jobs/ft-1", object("fine_tuning/jobs", "ft-1", "")),
            ("/v1/messages/batches/msgbatch_1", object("messages/batches", "msgbatch_1", "")),
            ("/v1/messages", None),
            ("/v1/messages/count_tokens", None),
            ("/v1/chat/completions", None),
            ("/v1/filesystem", None),
            ("/v1/responses_of/resp_1", None),
            ("/files/file-1", None),
        ] {
            assert_eq!(StoredPath::of(path), expected, "{path}");
        }
    }

    #[test]
    fn only_answers_that_are_objects_show_ids() {
        for (method, path, shows) in [
            (Method::Post, "/v1/responses", true),
            (Method::Get, "/v1/files", false),
            (Method::Get, "/v1/batches/batch_1", true),
            (Method::Post, "/v1/batches/batch_1/cancel", true),
            (Method::Post, "/v1/uploads/upload_1/complete", true),
            (Method::Get, "/v1/files/file-1/content", false),
            (Method::Get, "/v1/responses/resp_1/input_items", false),
            (Method::Delete, "/v1/files/file-1", false),
            (Method::Head, "/v1/files/file-1", false),
        ] {
            assert_eq!(StoredPath::of(path).unwrap().shows_ids(method), shows, "{method:?} {path}");
        }
    }

    #[test]
    fn only_what_a_model_works_at_is_demand() {
        for (method, path, is_demand) in [
            (Method::Post, "/v1/responses", true),
            (Method::Post, "/v1/batches", true),
            (Method::Post, "/v1/files", false),
            (Method::Post, "/v1/responses/resp_1/cancel", false),
            (Method::Get, "/v1/responses/resp_1", false),
            (Method::Get, "/v1/batches", false),
        ] {
            assert_eq!(StoredPath::of(path).unwrap().is_demand(method), is_demand, "{method:?} {path}");
        }
    }

    #[test]
    fn what_an_engine_keeps_is_not_asked_for_twice() {
        for (method, path, keeps) in [
            (Method::Post, "/v1/responses", false),
            (Method::Post, "/v1/responses/resp_1/cancel", true),
            (Method::Delete, "/v1/responses/resp_1", true),
            (Method::Get, "/v1/responses/resp_1", false),
            (Method::Post, "/v1/files", true),
            (Method::Post, "/v1/batches", true),
            (Method::Head, "/v1/files/file-1/content", false),
        ] {
            assert_eq!(StoredPath::of(path).unwrap().keeps_result(method), keeps, "{method:?} {path}");
        }
    }
}
