//! Stored objects: what an engine keeps beyond one request, such as a response, a file or a batch.
//!
//! An engine names an object by an id in its answer. `answer` reads the ids of such answers,
//! `holders` remembers which engine gave them, and `resolve` sends each request that names one to
//! its holder and to no other engine; `path` tells which paths are about stored objects. Requests
//! on other paths cost one look at their path.

mod answer;
mod holders;
mod path;
mod resolve;

pub(super) use answer::{AnswerWatch, Form, Seen};
pub(super) use holders::{Bounds, Holder, Holders};
pub(super) use path::StoredPath;
pub(super) use resolve::resolve;
