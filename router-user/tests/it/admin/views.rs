//! The views of the admin socket.

use router_user::admin::AdminClient;
use router_user::clock::Clock;

use super::{PATIENCE, POLL_INTERVAL, World, config, engine, run};

#[test]
fn views_show_the_present_beside_the_plan() {
    run(async {
        let config = config(&[engine().await]);
        // The profile's own, less the headroom.
        let capacity_rps = 50.0 * (1.0 - config.control.headroom_frac);
        let world = World::start(config, true).await;
        let client = AdminClient::new(&world.socket);
        let clock = Clock::start();
        let (engines, weights) = loop {
            let (engines, weights) = (client.engines().await.expect("engines"), client.weights().await.expect("weights"));
            let has_present = weights.routes[0].present_demand_rps.is_some();
            if has_present && engines.0[0].ready == Some(true) {
                break (engines, weights);
            }
            assert!(clock.now() < PATIENCE, "{engines:?}\n{weights:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let present = engines.0[0].capacity_rps;
        assert!((present - capacity_rps).abs() < 1e-9, "{present}");
        assert!(weights.routes[0].present_demand_rps.expect("known").is_finite());
        assert!(weights.to_string().contains("NOW/S"), "{weights}");
    });
}

#[test]
fn generations_are_epoch_and_count_in_json_and_in_text() {
    use router_user::publish::Generation;
    run(async {
        let world = World::start(config(&[engine().await]), false).await;
        let mut later = (*world.role.snapshot().expect("the first")).clone();
        later.generation = "1.3".parse::<Generation>().expect("legal").0;
        router_user::dataplane::apply(&world.role, std::sync::Arc::new(later.sealed())).await.expect("applied");
        let client = AdminClient::new(&world.socket);
        let (status, weights) = (client.status().await.expect("status"), client.weights().await.expect("weights"));
        let snapshots = client.snapshots().await.expect("snapshots");
        for json in [
            serde_json::to_value(&status).expect("JSON")["generation"].clone(),
            serde_json::to_value(&weights).expect("JSON")["generation"].clone(),
            serde_json::to_value(&snapshots).expect("JSON")[0]["generation"].clone(),
        ] {
            assert_eq!(json, "1.3");
        }
        for text in [status.to_string(), weights.to_string(), snapshots.to_string()] {
            assert!(text.contains("1.3") && !text.contains("4294967299"), "{text}");
        }
        world.until("/metrics", |_, text| text.contains("ilb_snapshot_info{generation=\"1.3\"} 1")).await;
    });
}
