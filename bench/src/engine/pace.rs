//! How fast the engine is at a load.

use std::time::Duration;

use router_user::model::Profile;

/// A profile on a scaled load axis.
#[derive(Clone, Debug)]
pub struct Pace {
    profile: Profile,
    /// Requests/s here for one request/s of the profile.
    scale: f64,
}

impl Pace {
    /// `scale` is the number of replicas times the scale of the load axis; > 0.
    pub fn new(profile: Profile, scale: f64) -> Self {
        Self { profile, scale }
    }

    /// Load at which the engine is full, in requests/s as they arrive here.
    pub fn capacity_rps(&self) -> f64 {
        self.profile.capacity_rps * self.scale
    }

    /// Time to first token at `load_rps`.
    pub fn ttft(&self, load_rps: f64) -> Duration {
        Duration::from_secs_f64(self.profile.ttft_ms.value(self.within(load_rps)) / 1e3)
    }

    /// Time between two tokens at `load_rps`.
    pub fn tbot(&self, load_rps: f64) -> Duration {
        Duration::from_secs_f64(self.profile.tbot_ms.value(self.within(load_rps)) / 1e3)
    }

    /// Load on the profile's axis. It never exceeds the capacity: other requests wait in the queue,
    /// in real time.
    fn within(&self, load_rps: f64) -> f64 {
        (load_rps / self.scale).min(self.profile.capacity_rps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use router_user::model::Curve;

    #[test]
    fn scaling_moves_the_load_axis_alone() {
        let curve = |knots: &[(f64, f64)]| Curve::new(knots.to_vec()).expect("convex");
        let profile = Profile {
            name: "p".to_owned(),
            capacity_rps: 100.0,
            ttft_ms: curve(&[(0.0, 120.0), (50.0, 150.0), (90.0, 400.0), (100.0, 900.0)]),
            tbot_ms: curve(&[(0.0, 8.0), (100.0, 20.0)]),
            law: None,
            kv_tokens: None,
        };
        let pace = Pace::new(profile, 0.2);
        assert_eq!(pace.ttft(0.0), Duration::from_millis(120));
        assert_eq!(pace.ttft(10.0), Duration::from_millis(150));
        assert_eq!(pace.ttft(20.0), Duration::from_millis(900));
        assert_eq!(pace.ttft(40.0), Duration::from_millis(900), "above capacity the queue tells, not the curve");
        assert_eq!(pace.tbot(10.0), Duration::from_millis(14));
    }
}
