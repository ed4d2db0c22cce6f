//! The fields of the JSON answers, as docs/admin.md lists them.

use std::collections::BTreeSet;

use router_user::admin::{ANSWERS, AdminClient};
use router_user::clock::Clock;
use router_user::control::PinRequest;
use serde_json::Value;

use super::{PATIENCE, POLL_INTERVAL, World, config, engine, run};

/// Adds the path of each field below `value`, and notes those that have something below them.
fn paths(value: &Value, at: &str, all: &mut BTreeSet<String>, filled: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            filled.insert(at.to_owned());
            for (name, value) in fields {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                paths(value, &path, all, filled);
                all.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{at}[]"), all, filled)),
        _ => {}
    }
}

#[test]
fn the_tables_of_fields_name_exactly_what_a_running_process_answers() {
    // Described at another place, or in one line.
    let elsewhere = ["control.engines[].signals.", "kernel.", "[].signals.prefix.", "[].signals.ttft.", "[].signals.itl."];
    run(async {
        let world = World::start(config(&[engine().await, engine().await]), true).await;
        world.chat().await;
        let client = AdminClient::new(&world.socket);
        let weights = vec![("e1".to_owned(), 0.3), ("e2".to_owned(), 0.7)];
        let pin = PinRequest { cluster: "a".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() };
        client.pin(&pin).await.expect("pinned, so that a second generation follows");
        let clock = Clock::start();
        // All parts are there once a plan was published and the engine was scraped.
        let answers = loop {
            let (status, engines) = (client.status().await.expect("status"), client.engines().await.expect("engines"));
            let (weights, snapshots) = (client.weights().await.expect("weights"), client.snapshots().await.expect("snapshots"));
            let is_scraped = engines.0[0].signals.is_some() && engines.0[0].live.is_some();
            if is_scraped && snapshots.0.iter().any(|snapshot| snapshot.moved.is_some()) {
                let json = |value: Result<Value, _>| value.expect("plain data");
                break [
                    ("/v1/status", json(serde_json::to_value(status))),
                    ("/v1/engines", json(serde_json::to_value(engines))),
                    ("/v1/weights", json(serde_json::to_value(weights))),
                    ("/v1/snapshots", json(serde_json::to_value(snapshots))),
                ];
            }
            assert!(clock.now() < PATIENCE, "{status:?}\n{engines:?}\n{snapshots:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        assert_eq!(answers.len(), ANSWERS.len());
        for (endpoint, answer) in answers {
            let table = ANSWERS.iter().find(|table| table.path == endpoint).expect("each has a table");
            let (mut found, mut filled) = (BTreeSet::new(), BTreeSet::new());
            paths(&answer, "", &mut found, &mut filled);
            found.retain(|path| !elsewhere.iter().any(|prefix| path.starts_with(prefix)));
            // A row below an object that is null here is taken at its word.
            let is_shown = |path: &str| filled.contains(path.rsplit_once('.').map_or("", |(parent, _)| parent));
            let listed = table.fields.iter().map(|field| field.path).filter(|path| is_shown(path)).map(str::to_owned);
            assert_eq!(listed.collect::<BTreeSet<_>>(), found, "{endpoint}");
        }
    });
}
