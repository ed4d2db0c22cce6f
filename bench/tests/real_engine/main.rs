//! Two real llama.cpp servers behind ilb: what clients receive is what the engines sent, byte for
//! byte.
//!
//! A recorder stands between ilb and each engine and keeps the bytes of both directions. Bodies are
//! compared with their framing removed, because ilb rebuilds the framing; nothing in them is left
//! out of the comparison. The same request with the same seed then goes to the same engine
//! directly, and the generated text has to be the same; ids, times and timings differ between two
//! runs by nature.

mod client;
mod recorder;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use bench::net::Reserved;
use bench::process::Child;
use bench::real_engine::{self, MODEL};
use bench::site::Site;
use client::{Reply, post};
use recorder::Recorder;
use serde_json::{Value, json};
use tokio::task::LocalSet;

/// Two engines with their recorders, and ilb in front.
struct Fleet {
    front: SocketAddr,
    engines: Vec<Engine>,
    _children: Vec<Child>,
    _ports: Reserved,
    _folder: tempfile::TempDir,
}

struct Engine {
    name: String,
    direct: SocketAddr,
    recorder: Rc<Recorder>,
}

/// `None` when the machine has no way to install the engines and nobody was promised that it has.
async fn fleet() -> Option<Fleet> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
    let installed = match real_engine::install(&root.join(".real-engine")) {
        Ok(installed) => installed,
        Err(error) => {
            let is_promised = std::env::var_os("CI").is_some() || std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
            assert!(!is_promised, "failed to install the real engines: {error:#}");
            eprintln!("skipped: failed to install the real engines: {error:#}");
            return None;
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = Reserved::new(5).expect("free ports");
    let (mut children, mut engines, mut recorded) = (Vec::new(), Vec::new(), Vec::new());
    for (number, &direct) in addresses[..2].iter().enumerate() {
        let name = format!("llama-{number}");
        children.push(real_engine::start(&installed, &name, direct, folder.path()).await.expect("the engine starts"));
        let recorder = Recorder::start(direct).await;
        recorded.push((name.clone(), recorder.address));
        engines.push(Engine { name, direct, recorder });
    }
    let (front, admin, control) = (addresses[2], addresses[3], addresses[4]);
    let site = Site { front, admin, control, folder: folder.path(), engines: &recorded, model: MODEL };
    children.push(real_engine::front(&site).await.expect("ilb starts"));
    Some(Fleet { front, engines, _children: children, _ports: addresses, _folder: folder })
}

/// A request that an idle engine answers alike every time.
fn body(path: &str, seed: u32, is_stream: bool) -> String {
    let mut body = json!({
        "model": MODEL, "seed": seed, "cache_prompt": false, "max_tokens": 60, "stream": is_stream,
        // Fields ilb knows nothing of, and a text that a re-serialised body would write another
        // way.
        "stream_options": { "include_usage": true }, "chat_template_kwargs": {}, "user": "caf\u{e9}",
    });
    let text = format!("Tell me, {seed}: where does it run?");
    match path {
        "/v1/chat/completions" => body["messages"] = json!([{ "role": "user", "content": text }]),
        _ => body["prompt"] = text.into(),
    }
    // Spaces and an escape that no serialiser would write, to show that bytes are kept and not
    // values.
    body.to_string().replacen("\"seed\":", "\"seed\" :  ", 1).replace('\u{e9}', "\\u00E9")
}

impl Fleet {
    async fn ask(&self, path: &str, session: &str, body: &str) -> Reply {
        post(self.front, path, &[("x-session-id", session), ("x-kept", "as it is")], body).await
    }

    /// The engine that answered, as the reply names it.
    fn served_by(&self, reply: &Reply) -> &Engine {
        let name = reply.header("x-ilb-engine").expect("ilb names the engine");
        self.engines.iter().find(|engine| engine.name == name).unwrap_or_else(|| panic!("no engine is called {name:?}"))
    }

    /// The engine sent exactly these bytes, in answer to exactly these, and no other engine did.
    fn assert_same_bytes(&self, path: &str, body: &str, reply: &Reply) {
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        let server = self.served_by(reply);
        let mut found = 0;
        for engine in &self.engines {
            for exchange in engine.recorder.exchanges() {
                if exchange.reply.body != reply.body {
                    continue;
                }
                found += 1;
                assert_eq!(engine.name, server.name, "x-ilb-engine names another engine than the one that answered");
                assert_eq!(exchange.path, path);
                assert_eq!(String::from_utf8_lossy(&exchange.request_body), body, "the request's body was changed");
                assert!(
                    exchange
                        .request_fields
                        .iter()
                        .any(|(name, value)| name.eq_ignore_ascii_case("x-kept") && value == "as it is")
                );
                assert_eq!(exchange.reply.status, reply.status);
                assert_eq!(exchange.reply.header("content-type"), reply.header("content-type"));
            }
        }
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!(
            found, 1,
            "{found} recorded replies have the bytes the client received; wanted one. The client received:\n{text}"
        );
    }
}

/// The generated text and why it ended, of a stream or of a whole answer.
fn text(reply: &Reply) -> (String, String) {
    let (mut text, mut reason) = (String::new(), String::new());
    let mut add = |choice: &Value| {
        for place in [&choice["delta"]["content"], &choice["message"]["content"], &choice["text"]] {
            text.push_str(place.as_str().unwrap_or_default());
        }
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    };
    let body = std::str::from_utf8(&reply.body).expect("UTF-8");
    if reply.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        let events: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, chunks) = events.split_last().expect("events");
        assert_eq!(*last, "[DONE]", "the stream ends otherwise:\n{body}");
        for chunk in chunks {
            let chunk: Value = serde_json::from_str(chunk).unwrap_or_else(|error| panic!("{chunk:?} is no JSON: {error}"));
            chunk["choices"].as_array().into_iter().flatten().for_each(&mut add);
        }
    } else {
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{body:?} is no JSON: {error}"));
        answer["choices"].as_array().into_iter().flatten().for_each(&mut add);
    }
    (text, reason)
}

#[test]
fn completions_of_real_engines_come_through_byte_for_byte() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let Some(fleet) = fleet().await else { return };
        let mut served = BTreeSet::new();
        let mut texts = BTreeSet::new();
        for seed in 0..16 {
            let path = if seed % 4 < 2 { "/v1/chat/completions" } else { "/v1/completions" };
            let body = body(path, seed, seed % 2 == 0);
            let reply = fleet.ask(path, &format!("session-{seed}"), &body).await;
            fleet.assert_same_bytes(path, &body, &reply);
            let engine = fleet.served_by(&reply);
            let direct = post(engine.direct, path, &[], &body).await;
            assert_eq!(text(&reply), text(&direct), "the same seed gave another text through ilb");
            assert!(!text(&reply).1.is_empty(), "no finish_reason in {:?}", String::from_utf8_lossy(&reply.body));
            served.insert(engine.name.clone());
            texts.insert(text(&reply).0);
        }
        assert_eq!(served.len(), 2, "only {served:?} served 16 sessions");
        assert!(texts.len() >= 14, "only {} different texts of 16 seeds: the comparison would see too little", texts.len());

        // Many at a time: the engines batch, events of different streams interleave, and none may
        // reach another's client.
        let path = "/v1/chat/completions";
        let bodies: Vec<String> = (100..124).map(|seed| body(path, seed, true)).collect();
        let fleet = &fleet;
        let asks =
            bodies.iter().enumerate().map(|(n, body)| async move { (n, fleet.ask(path, &format!("many-{n}"), body).await) });
        let replies = client::all(asks).await;
        assert_eq!(replies.len(), bodies.len());
        for (n, reply) in replies {
            fleet.assert_same_bytes(path, &bodies[n], &reply);
        }

        // An engine's own error is passed on as it is.
        let bad = format!(r#"{{"model":"{MODEL}","messages":"none"}}"#);
        let reply = fleet.ask(path, "bad", &bad).await;
        let direct = post(fleet.served_by(&reply).direct, path, &[], &bad).await;
        assert_eq!((reply.status, &reply.body), (direct.status, &direct.body));
        assert!(reply.status >= 400, "{}", reply.status);
    });
}
