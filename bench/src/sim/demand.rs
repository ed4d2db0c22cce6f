//! How much is asked, and the draws of how much comes.

use router_user::model::Fleet;

use super::scenario::{Kind, Scenario};
use crate::plan::world::{Size, World};
use router_user::rng::Rng;

/// Means up to this are drawn by multiplying uniform numbers, larger ones as normal: beyond it the
/// difference is none to see.
const FEW: f64 = 30.0;

/// A fleet and the demand that its clusters have.
#[derive(Debug)]
pub(super) struct Demand {
    world: World,
    regions: usize,
}

impl Demand {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let shape = &scenario.fleet;
        let size = Size {
            clusters: usize::from(shape.clusters),
            engines: usize::from(shape.engines),
            classes: usize::from(shape.classes),
            load_frac: shape.load_frac,
            is_pooled: true,
        };
        let world = World::new(size, scenario.seed);
        let mut regions: Vec<&str> = world.fleet.clusters.iter().map(|cluster| cluster.region.as_str()).collect();
        regions.sort_unstable();
        regions.dedup();
        let regions = regions.len();
        Self { world, regions }
    }

    pub(super) fn fleet(&self) -> &Fleet {
        &self.world.fleet
    }

    /// Demand in a second, `[cluster][class]` in requests/s: its mean with noise, by the hour of
    /// the region, and by what happens.
    pub(super) fn rates_rps(&mut self, scenario: &Scenario, at_s: u32) -> Vec<Vec<f64>> {
        let mut rates = self.world.demand_rps();
        let day = f64::from(at_s) / f64::from(scenario.demand.day_s);
        for (at, (rates, cluster)) in rates.iter_mut().zip(&self.world.fleet.clusters).enumerate() {
            let hour = day + (at % self.regions) as f64 / self.regions as f64;
            let mut factor = 1.0 + scenario.demand.swing_frac * (std::f64::consts::TAU * hour).sin();
            for kind in scenario.active(at_s) {
                if let Kind::Demand { cluster: of, factor: by } = kind
                    && of.as_ref().is_none_or(|of| *of == cluster.name)
                {
                    factor *= by;
                }
            }
            rates.iter_mut().for_each(|rate| *rate *= factor);
        }
        rates
    }
}

/// How many come where `mean` are expected (Poisson).
pub(super) fn draw(rng: &mut Rng, mean: f64) -> u64 {
    if mean <= 0.0 {
        return 0;
    }
    if mean > FEW {
        let normal = (-2.0 * rng.unit().ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
        return (mean + mean.sqrt() * normal).round().max(0.0) as u64;
    }
    // Knuth 1969, 3.4.1: uniform numbers whose product stays above e^-mean.
    let (least, mut product, mut count) = ((-mean).exp(), rng.unit(), 0);
    while product > least {
        product *= rng.unit();
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_spread_of_a_poisson_number() {
        let mut rng = Rng::new(5);
        for mean in [0.0, 0.3, 7.0, 29.0, 31.0, 400.0] {
            let draws: Vec<f64> = (0..20_000).map(|_| draw(&mut rng, mean) as f64).collect();
            let found = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - found).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!((found - mean).abs() <= 4.0 * (mean / 20_000.0).sqrt(), "mean {found}, wanted {mean}");
            assert!((variance - mean).abs() <= 0.08 * mean, "variance {variance}, wanted {mean}");
        }
    }
}
