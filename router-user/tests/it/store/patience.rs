//! A plan that takes long keeps nobody waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use router_user::admin::{self, AdminClient, AdminState, UnpinRequest};
use router_user::clock::Clock;
use router_user::config;
use router_user::control::{Command, Controller, PinRequest, Planning};
use router_user::protocol::DemandReport;
use tokio::time::timeout;

use super::{PATIENCE, run};

/// How long every plan but the first takes here.
const SLOW_PLAN: Duration = Duration::from_secs(5);

#[test]
fn status_reports_and_pins_are_answered_while_a_plan_takes_five_seconds() {
    run(async || {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
        config.store.dir = folder.path().join("snapshots");
        config.control.period = Duration::from_millis(100);
        // Nothing listens where the engines are said to be; their health must not make plans of its
        // own.
        config.control.health_period = Duration::from_secs(3_600);
        config.control.scrape_period = None;
        let (clock, begun, ended) = (Clock::start(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (begins, ends) = (Arc::clone(&begun), Arc::clone(&ended));
        let mut planning = Planning::new(Duration::from_secs(1));
        let slow = Box::new(move |fleet: &_, inputs: &_, held: Option<&[_]>| {
            if begins.fetch_add(1, Ordering::SeqCst) > 0 {
                std::thread::sleep(SLOW_PLAN);
            }
            let plan = planning.plan(fleet, inputs, held);
            ends.fetch_add(1, Ordering::SeqCst);
            plan
        });
        let controller = Controller::start_with(Arc::new(config), clock, None, Some(slow)).expect("started");
        let socket = folder.path().join("ilb.sock");
        let listener = admin::bind_socket(&socket).await.expect("bound");
        admin::serve(AdminState { clock, controller: Some(controller.clone()), data: None }, listener, None).expect("served");
        while begun.load(Ordering::SeqCst) < 2 {
            assert!(clock.now() < PATIENCE, "no second plan begins");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }

        let client = AdminClient::new(&socket);
        let status = client.status().await.expect("answered");
        assert!(status.control.is_some_and(|control| control.plans == 1));
        let report = DemandReport {
            cluster: "b".to_owned(),
            instance: "p".to_owned(),
            window_ms: 1_000,
            arrivals: vec![("chat".to_owned(), 120)],
            ..DemandReport::default()
        };
        controller.ask(|done| Command::Report(report, done)).await.expect("taken");
        let weights = vec![("e1".to_owned(), 0.25), ("e2".to_owned(), 0.75)];
        let pin = PinRequest { cluster: "b".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() };
        client.pin(&pin).await.expect("accepted");
        assert_eq!(ended.load(Ordering::SeqCst), 1, "the slow plan was not waited for");

        // The plan that was made without the pin is not published; the next one keeps it.
        let mut snapshots = controller.snapshots.clone();
        let pinned = timeout(PATIENCE, snapshots.wait_for(|s| s.as_ref().is_some_and(|s| s.routes[1].pinned))).await;
        let pinned = pinned.expect("in time").expect("runs").clone().expect("there");
        assert_eq!(pinned.generation, 2, "{}", pinned.reason);
        let wrong = UnpinRequest { cluster: None, class: Some("nope".to_owned()) };
        let error = client.unpin(&wrong).await.expect_err("no such class").to_string();
        assert!(error.contains("unknown class \"nope\"; wanted one of chat"), "{error}");
    });
}
