//! Operators' orders about engines, from the command to the requests.

use std::time::Duration;

use router_user::admin::{AdminClient, ClientError, EnginesView};
use router_user::clock::Clock;
use router_user::control::{OrderReply, OrderRequest, OrderVerb};
use router_user::policy::outlier::EngineState;

use super::{PATIENCE, POLL_INTERVAL, World, config, engine, run};

fn request(engine: &str, order: OrderVerb) -> OrderRequest {
    let (reason, by) = ("new driver".to_owned(), "alice".to_owned());
    OrderRequest { engine: engine.to_owned(), order, ttl_ms: None, reason, by, force: false }
}

/// Gives an order and waits until the data plane has the snapshot that tells of it.
async fn give(world: &World, request: &OrderRequest) -> OrderReply {
    let reply = AdminClient::new(&world.socket).order(request).await.expect("carried out");
    if let Some(generation) = reply.generation {
        until(world, "the order is delivered", |_| world.role.snapshot().is_some_and(|s| s.generation >= generation.0)).await;
    }
    reply
}

async fn refused(world: &World, request: &OrderRequest) -> String {
    match AdminClient::new(&world.socket).order(request).await {
        Err(ClientError::Refused { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

async fn until(world: &World, what: &str, wanted: impl Fn(&EnginesView) -> bool) -> EnginesView {
    let clock = Clock::start();
    loop {
        let engines = AdminClient::new(&world.socket).engines().await.expect("engines");
        if wanted(&engines) {
            return engines;
        }
        assert!(clock.now() < PATIENCE, "waited in vain until {what}: {engines:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn picks(engines: &EnginesView) -> Vec<u64> {
    engines.0.iter().map(|engine| engine.live.as_ref().expect("a data plane").picks).collect()
}

fn state(engines: &EnginesView, number: usize) -> EngineState {
    engines.0[number].live.as_ref().expect("a data plane").state
}

/// How many of twenty requests go to each engine.
async fn spread(world: &World) -> Vec<u64> {
    let before = picks(&until(world, "engines are shown", |_| true).await);
    for _ in 0..20 {
        world.chat().await;
    }
    let after = picks(&until(world, "engines are shown", |_| true).await);
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

#[test]
fn an_engine_that_is_drained_or_ejected_gets_nothing_until_the_order_is_taken_back() {
    run(async {
        let world = World::start(config(&[engine().await, engine().await]), true).await;
        until(&world, "a plan uses both", |engines| engines.0.iter().all(|engine| engine.load_rps > 0.0)).await;
        for (order, opposite, expected) in [
            (OrderVerb::Drain, OrderVerb::Undrain, EngineState::Drained),
            (OrderVerb::Eject, OrderVerb::Restore, EngineState::EjectedByOperator),
        ] {
            assert_eq!(give(&world, &request("e1", order)).await.shortage, None);
            assert_eq!(spread(&world).await, [0, 20], "from the snapshot on that tells of it");
            let shown = until(&world, "a plan does without it", |engines| engines.0[0].load_rps == 0.0).await;
            assert_eq!(state(&shown, 0), expected);
            let told = shown.0[0].order.as_ref().expect("shown");
            assert_eq!((told.by.as_str(), told.reason.as_str()), ("alice", "new driver"));
            assert!(shown.to_string().contains("by alice since"), "{shown}");
            let metric = format!("ilb_plan_engine_order{{engine=\"e1\",order=\"{}\"}} 1", order.name());
            world.until("/metrics", |_, page| page.contains(&metric)).await;
            let why = AdminClient::new(&world.socket).explain(&Default::default()).await.expect("explained");
            assert!(why.to_string().contains("withdrawn: "), "{why}");
            assert_eq!(spread(&world).await, [0, 20]);
            give(&world, &request("e1", opposite)).await;
            until(&world, "its share grows back", |engines| {
                matches!(state(engines, 0), EngineState::Ramp | EngineState::Healthy) && engines.0[0].load_rps > 0.0
            })
            .await;
        }
        let clock = Clock::start();
        while spread(&world).await[0] == 0 {
            assert!(clock.now() < PATIENCE, "it gets nothing");
        }
    });
}

#[test]
fn what_would_leave_demand_without_an_engine_is_refused_unless_it_is_forced() {
    run(async {
        let world = World::start(config(&[engine().await, engine().await]), true).await;
        until(&world, "a plan uses both", |engines| engines.0.iter().all(|engine| engine.load_rps > 0.0)).await;
        give(&world, &request("e2", OrderVerb::Eject)).await;
        let no_engine = "without engine e1 no engine is left for chat";
        for order in [OrderVerb::Drain, OrderVerb::Eject] {
            let message = refused(&world, &request("e1", order)).await;
            assert_eq!(message, format!("{no_engine}; with --force it is done all the same"));
        }
        let unknown = refused(&world, &request("e3", OrderVerb::Drain)).await;
        assert_eq!(unknown, "unknown engine \"e3\"; wanted one of e1, e2");
        let forced = |order| OrderRequest { force: true, ..request("e1", order) };
        assert_eq!(give(&world, &forced(OrderVerb::Drain)).await.shortage.as_deref(), Some(no_engine));
        assert_eq!(spread(&world).await, [20, 0], "a drained engine serves what no other can take");
        give(&world, &forced(OrderVerb::Eject)).await;
        let (status, body) = world.ask().await;
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("an operator has ejected every engine of model"), "{body}");
        give(&world, &request("e1", OrderVerb::Restore)).await;
        assert_eq!(spread(&world).await, [20, 0]);
    });
}

#[test]
fn an_order_with_a_time_expires_by_itself() {
    run(async {
        let world = World::start(config(&[engine().await, engine().await]), true).await;
        until(&world, "a plan uses both", |engines| engines.0.iter().all(|engine| engine.load_rps > 0.0)).await;
        let ttl = Duration::from_secs(2);
        give(&world, &OrderRequest { ttl_ms: Some(ttl.as_millis() as u64), ..request("e1", OrderVerb::Eject) }).await;
        until(&world, "it is ejected", |engines| state(engines, 0) == EngineState::EjectedByOperator).await;
        let back = until(&world, "it is back", |engines| {
            engines.0[0].order.is_none() && !state(engines, 0).is_by_operator() && engines.0[0].load_rps > 0.0
        });
        back.await;
    });
}
