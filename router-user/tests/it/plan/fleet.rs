//! Fleets for the tests of planning, built by hand.

use std::net::{Ipv4Addr, SocketAddr};

use router_user::model::{Class, Cluster, Curve, Engine, Fleet, Profile, Tags};

pub(crate) fn curve(knots: &[(f64, f64)]) -> Curve {
    Curve::new(knots.to_vec()).expect("knots of a test are convex")
}

pub(crate) fn profile(name: &str, capacity_rps: f64, ttft_ms: &[(f64, f64)], tbot_ms: &[(f64, f64)]) -> Profile {
    Profile { name: name.to_owned(), capacity_rps, ttft_ms: curve(ttft_ms), tbot_ms: curve(tbot_ms), law: None, kv_tokens: None }
}

pub(crate) fn cluster(name: &str, region: &str, demand_rps: &[f64]) -> Cluster {
    Cluster { name: name.to_owned(), region: region.to_owned(), demand_rps: demand_rps.to_vec(), detour_budget_ms: None }
}

pub(crate) fn engine(name: &str, region: &str, profile: usize) -> Engine {
    Engine {
        name: name.to_owned(),
        region: region.to_owned(),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 18_000)),
        models: vec!["demo".to_owned()],
        profile,
        replicas: 1,
        tags: Tags::new(),
    }
}

pub(crate) fn class(name: &str, output_tokens: f64, priority: u8) -> Class {
    Class { name: name.to_owned(), model: "demo".to_owned(), output_tokens, priority, move_price_ms: 5.0, ..Class::default() }
}

pub(crate) fn tag(key: &str, value: &str) -> Tags {
    Tags::from([(key.to_owned(), value.to_owned())])
}

pub(crate) fn demo_100() -> Profile {
    let ttft = [(0.0, 120.0), (50.0, 150.0), (90.0, 400.0), (100.0, 900.0)];
    profile("demo-100", 100.0, &ttft, &[(0.0, 8.0), (100.0, 20.0)])
}

pub(crate) fn demo_80() -> Profile {
    let ttft = [(0.0, 120.0), (40.0, 150.0), (72.0, 400.0), (80.0, 900.0)];
    profile("demo-80", 80.0, &ttft, &[(0.0, 8.0), (80.0, 20.0)])
}

/// Cluster b has more demand than its near engine can take; c has room to spare, but is far from a.
pub(crate) fn three_regions() -> Fleet {
    Fleet {
        clusters: vec![cluster("a", "r1", &[90.0]), cluster("b", "r2", &[120.0]), cluster("c", "r3", &[40.0])],
        engines: vec![engine("e1", "r1", 0), engine("e2", "r2", 0), engine("e3", "r3", 1)],
        classes: vec![class("chat", 50.0, 0)],
        profiles: vec![demo_100(), demo_80()],
        rtt_ms: vec![vec![1.0, 30.0, 80.0], vec![30.0, 1.0, 60.0], vec![80.0, 60.0, 1.0]],
    }
}
