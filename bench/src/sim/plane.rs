//! One cluster's data plane: which weights it follows, and where its requests go.

use std::sync::Arc;
use std::time::Duration;

use router_user::dataplane::LocalOverrides;
use router_user::model::{ClassId, ClusterId, EngineId, Fleet};
use router_user::plan::RouteWeights;
use router_user::policy::decay::plan_share;
use router_user::policy::outage::Outage;
use router_user::protocol::DemandReport;
use router_user::publish::build;

use super::scenario::Lie;
use super::types::{Availability, Published, Split};
use router_user::rng::Rng;

/// Longest usual time between two looks at the controller, in s; the shortest is 1 s. Once in
/// [`LATE_LOOKS`] looks it is [`LATE_LOOK_S`]: a data plane that was held up.
const LOOK_S: u64 = 3;
const LATE_LOOKS: u64 = 40;
const LATE_LOOK_S: u32 = 12;
/// Longest window of a report, in s, as in production.
const REPORT_WINDOW_MAX_S: u32 = 60;

#[derive(Debug)]
pub(super) struct Plane {
    pub(super) cluster: ClusterId,
    pub(super) current: Arc<Published>,
    pub(super) effective: Vec<RouteWeights>,
    next_look_s: u32,
    contact_s: u32,
    outages: Vec<Outage>,
    failures: Vec<u64>,
    overrides: LocalOverrides,
    arrived: Vec<u64>,
    since_s: u32,
    /// What was reported last, in a window of how many seconds.
    reported: (Vec<u64>, u32),
}

impl Plane {
    pub(super) fn new(cluster: ClusterId, fleet: &Fleet, first: &Arc<Published>) -> Self {
        let engines = fleet.engines.len();
        let mut plane = Self {
            cluster,
            current: Arc::clone(first),
            effective: Vec::new(),
            next_look_s: 0,
            contact_s: 0,
            outages: vec![Outage::default(); engines],
            failures: vec![0; engines],
            overrides: LocalOverrides::default(),
            arrived: vec![0; fleet.classes.len()],
            since_s: 0,
            reported: (vec![0; fleet.classes.len()], 1),
        };
        plane.apply(fleet);
        plane
    }

    /// Asks the controller for what is newer, if it is time to.
    pub(super) fn look(&mut self, at_s: u32, newest: Option<&Arc<Published>>, fleet: &Fleet, rng: &mut Rng) {
        if at_s < self.next_look_s {
            return;
        }
        self.next_look_s = at_s + if rng.below(LATE_LOOKS) == 0 { LATE_LOOK_S } else { 1 + rng.below(LOOK_S) as u32 };
        self.contact_s = at_s;
        // What is on trial in another cluster is passed over.
        let name = &fleet.clusters[self.cluster.index()].name;
        let is_for_it = |newest: &Published| newest.snapshot.as_ref().is_none_or(|snapshot| snapshot.is_for(name));
        if let Some(newest) = newest.filter(|newest| newest.generation > self.current.generation && is_for_it(newest)) {
            self.current = Arc::clone(newest);
            self.apply(fleet);
        }
    }

    /// Takes what its own connections say of engines, and how long the controller has been silent.
    pub(super) fn doubt(&mut self, at_s: u32, fleet: &Fleet, stale_after: Duration, is_up: &[bool]) {
        for (engine, (outage, failures)) in self.outages.iter_mut().zip(&mut self.failures).enumerate() {
            let uses = self.effective.iter().any(|route| route.weights.iter().any(|&(used, _)| used.index() == engine));
            if !is_up[engine] && uses {
                *failures += 1;
                outage.observe(true, *failures);
            }
            if outage.is_down() {
                outage.probed(is_up[engine]);
            }
        }
        let down = |(engine, outage): (usize, &Outage)| outage.is_down().then(|| fleet.engines[engine].name.clone());
        let down: Vec<String> = self.outages.iter().enumerate().filter_map(down).collect();
        let plan_share = plan_share(Duration::from_secs(u64::from(at_s - self.contact_s)), stale_after);
        let overrides = LocalOverrides { plan_share, down };
        if overrides != self.overrides {
            self.overrides = overrides;
            self.apply(fleet);
        }
    }

    fn apply(&mut self, fleet: &Fleet) {
        let weights = match &self.current.snapshot {
            None => self.current.weights.clone(),
            Some(snapshot) => {
                let effective = self.overrides.apply(snapshot, self.cluster, fleet);
                build::current_weights(fleet, &effective.snapshot).expect("the snapshot is of this fleet")
            }
        };
        self.effective = weights.into_iter().filter(|route| route.cluster == self.cluster).collect();
    }

    /// Where the requests of a class go: by weight to what is fit, as the ranks of slots have it;
    /// what has no weight comes last.
    pub(super) fn split(&self, class: ClassId, eligible: &[EngineId], availability: impl Fn(EngineId) -> Availability) -> Split {
        let Some(route) = self.effective.iter().find(|route| route.class == class) else {
            return Split { unreachable: 1.0, ..Split::default() };
        };
        let mut split = Split { shed: route.shed_frac, ..Split::default() };
        let asked = 1.0 - route.shed_frac;
        let fit = |engine: EngineId| availability(engine) == Availability::Fit;
        let mut sent: Vec<(EngineId, f64)> =
            route.weights.iter().copied().filter(|&(engine, w)| w > 0.0 && fit(engine)).collect();
        if sent.is_empty() {
            sent = eligible.iter().copied().filter(|&engine| fit(engine)).map(|engine| (engine, 1.0)).collect();
        }
        let sum: f64 = sent.iter().map(|&(_, weight)| weight).sum();
        if sum <= 0.0 {
            let is_full = eligible.iter().any(|&engine| availability(engine) == Availability::Full);
            *(if is_full { &mut split.full } else { &mut split.unreachable }) = asked;
            return split;
        }
        let own: f64 = route.weights.iter().filter(|&&(engine, _)| fit(engine)).map(|&(_, weight)| weight).sum();
        split.redirected = asked * (1.0 - own).max(0.0);
        split.sent = sent.into_iter().map(|(engine, weight)| (engine, asked * weight / sum)).collect();
        split
    }

    pub(super) fn count(&mut self, class: ClassId, arrivals: u64) {
        self.arrived[class.index()] += arrivals;
    }

    /// The report that is due; `None` when nobody is there to take it. What could not be reported
    /// is, later, up to a window.
    pub(super) fn report(&mut self, at_s: u32, fleet: &Fleet, has_controller: bool, lie: Option<Lie>) -> Option<DemandReport> {
        let window = at_s - self.since_s;
        if window == 0 || (!has_controller && window <= REPORT_WINDOW_MAX_S) {
            return None;
        }
        let truth = std::mem::replace(&mut self.arrived, vec![0; fleet.classes.len()]);
        self.since_s = at_s;
        if !has_controller {
            return None;
        }
        let (counts, window) = match lie {
            None => (truth, window),
            Some(Lie::Zeros) => (vec![0; truth.len()], window),
            Some(Lie::Tenfold) => (truth.iter().map(|count| 10 * count).collect(), window),
            Some(Lie::Frozen) => self.reported.clone(),
        };
        self.reported = (counts.clone(), window);
        Some(DemandReport {
            cluster: fleet.clusters[self.cluster.index()].name.clone(),
            instance: "plane".to_owned(),
            window_ms: u64::from(window) * 1_000,
            arrivals: fleet.classes.iter().map(|class| class.name.clone()).zip(counts).collect(),
            generation: self.current.generation,
            engines: Vec::new(),
        })
    }
}
