//! The report of a run of `ilb-bench plan`.

use std::fmt;

use router_user::plan::Plan;
use serde::Serialize;

use super::Args;
use crate::origin::Origin;

/// Figures of one run. Units: ms, shares of 1.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub clusters: u16,
    pub engines: u16,
    pub classes: u16,
    pub pooled: bool,
    pub load: f64,
    pub ticks: u32,
    pub seed: u64,
    pub still: bool,
    /// The first plan, from nothing.
    pub cold_ms: f64,
    /// Plan, certificate, account of every weight and decision, one tick after the other.
    pub warm_p50_ms: f64,
    pub warm_p99_ms: f64,
    /// The same when the largest region is lost, and what had to be shed for it.
    pub region_loss_ms: f64,
    pub region_loss_shed_rps: f64,
    /// Largest certified gap of all plans.
    pub gap_max: f64,
    /// Share of the traffic that published weights moved, per tick.
    pub churn_mean: f64,
    pub churn_max: f64,
    /// Weights that changed by more than 1 % one way and then the other within ten ticks.
    pub reversals: u32,
    pub published_share: f64,
    /// Weights above 0.1 % and eligible zeros without a reason that adds up, over all plans.
    pub unexplained: usize,
    pub rounds_max: u32,
    pub components: u32,
    /// The plain linear program beside it, where the fleet is small enough: it sees every noise and
    /// takes every plan.
    pub plain_churn_mean: Option<f64>,
    pub plain_churn_max: Option<f64>,
    pub plain_reversals: Option<u32>,
    /// Mean latency of the calm weights over that of the plain program's, under the true distances,
    /// less 1.
    pub cost_over_plain_mean: Option<f64>,
    #[serde(skip)]
    warm_ms: Vec<f64>,
    #[serde(skip)]
    plain: Vec<(f64, f64)>,
}

/// A report with where it comes from.
#[derive(Debug, Serialize)]
pub(super) struct Saved<'a> {
    #[serde(flatten)]
    pub(super) origin: &'a Origin,
    #[serde(flatten)]
    pub(super) report: &'a Report,
}

impl Report {
    pub(super) fn new(args: &Args) -> Self {
        let &Args { clusters, engines, classes, pooled, load, ticks, seed, still, .. } = args;
        Self {
            clusters,
            engines,
            classes,
            pooled,
            load,
            ticks,
            seed,
            still,
            cold_ms: 0.0,
            warm_p50_ms: 0.0,
            warm_p99_ms: 0.0,
            region_loss_ms: 0.0,
            region_loss_shed_rps: 0.0,
            gap_max: 0.0,
            churn_mean: 0.0,
            churn_max: 0.0,
            reversals: 0,
            published_share: 0.0,
            unexplained: 0,
            rounds_max: 0,
            components: 0,
            plain_churn_mean: None,
            plain_churn_max: None,
            plain_reversals: None,
            cost_over_plain_mean: None,
            warm_ms: Vec::new(),
            plain: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, plan: &Plan, ms: f64, moved: f64, is_published: bool, unexplained: usize, is_first: bool) {
        self.note(plan, unexplained);
        if is_first {
            self.cold_ms = ms;
            return;
        }
        self.warm_ms.push(ms);
        self.warm_ms.sort_by(f64::total_cmp);
        (self.warm_p50_ms, self.warm_p99_ms) = (quantile(&self.warm_ms, 0.5), quantile(&self.warm_ms, 0.99));
        let ticks = f64::from(self.ticks);
        self.churn_mean += moved / ticks;
        self.churn_max = self.churn_max.max(moved);
        self.published_share += if is_published { 1.0 / ticks } else { 0.0 };
    }

    pub(super) fn add_plain(&mut self, moved: f64, cost_over: f64, is_first: bool) {
        if is_first {
            return;
        }
        self.plain.push((moved, cost_over));
        let mean = |of: fn(&(f64, f64)) -> f64| self.plain.iter().map(of).sum::<f64>() / self.plain.len() as f64;
        self.plain_churn_mean = Some(mean(|&(moved, _)| moved));
        self.plain_churn_max = Some(self.plain.iter().map(|&(moved, _)| moved).fold(0.0, f64::max));
        self.cost_over_plain_mean = Some(mean(|&(_, cost)| cost));
    }

    pub(super) fn add_loss(&mut self, plan: &Plan, ms: f64, unexplained: usize) {
        self.note(plan, unexplained);
        self.region_loss_ms = ms;
        self.region_loss_shed_rps = plan.routes.iter().map(|route| route.shed_rps).sum();
    }

    fn note(&mut self, plan: &Plan, unexplained: usize) {
        self.gap_max = self.gap_max.max(plan.certificate.gap_frac);
        self.rounds_max = self.rounds_max.max(plan.certificate.rounds);
        self.components = plan.certificate.components;
        self.unexplained += unexplained;
    }
}

/// The value below which a share of `sorted` lies, by nearest rank; 0 of nothing.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pooled = if self.pooled { "identical engines pooled" } else { "every engine apart" };
        writeln!(
            f,
            "{} clusters x {} engines x {} classes, {pooled}, {} parts; load {}, {} ticks, seed {}",
            self.clusters, self.engines, self.classes, self.components, self.load, self.ticks, self.seed
        )?;
        writeln!(f, "plan, check and account: cold {:.1} ms", self.cold_ms)?;
        writeln!(f, "  warm p50 {:.1} ms, p99 {:.1} ms, at most {} rounds", self.warm_p50_ms, self.warm_p99_ms, self.rounds_max)?;
        writeln!(f, "  largest region lost: {:.1} ms, {:.1} requests/s shed", self.region_loss_ms, self.region_loss_shed_rps)?;
        writeln!(f, "largest gap {:.2e}; {} weights or zeros without a reason", self.gap_max, self.unexplained)?;
        writeln!(
            f,
            "\n{:14}  {:>10}  {:>10}  {:>9}  {:>9}  {:>9}",
            "", "churn mean", "churn max", "reversals", "published", "cost"
        )?;
        write!(
            f,
            "{:14}  {:>8.3} %  {:>8.2} %  {:>9}  {:>7.1} %",
            "ilb",
            self.churn_mean * 100.0,
            self.churn_max * 100.0,
            self.reversals,
            self.published_share * 100.0
        )?;
        if let (Some(mean), Some(max), Some(reversals), Some(cost)) =
            (self.plain_churn_mean, self.plain_churn_max, self.plain_reversals, self.cost_over_plain_mean)
        {
            writeln!(f, "  {:>+7.3} %", cost * 100.0)?;
            write!(
                f,
                "{:14}  {:>8.3} %  {:>8.2} %  {:>9}  {:>7.1} %  {:>9}",
                "plain program",
                mean * 100.0,
                max * 100.0,
                reversals,
                100.0,
                "0"
            )?;
        }
        Ok(())
    }
}
