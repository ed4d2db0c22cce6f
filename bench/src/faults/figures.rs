//! What one run found, and the limits that it must keep.

use serde::Serialize;

/// Bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn is_kept(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

/// One figure of one run, or its median over several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    /// With its unit, as the head of a column.
    pub(super) name: &'static str,
    /// `None`: there was nothing to measure. Infinite: it never happened.
    pub(super) value: Option<f64>,
    pub(super) limit: Option<Limit>,
}

impl Figure {
    /// False when the figure is beyond its limit. A figure without a value has nothing to judge.
    pub(super) fn is_kept(&self) -> bool {
        match (self.value, self.limit) {
            (Some(value), Some(limit)) => limit.is_kept(value),
            _ => true,
        }
    }
}

/// The figures of one run, in the order of the columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Figures(Vec<Figure>);

impl Figures {
    pub(super) fn note(&mut self, name: &'static str, value: impl Into<Option<f64>>) {
        self.0.push(Figure { name, value: value.into(), limit: None });
    }

    pub(super) fn judge(&mut self, name: &'static str, value: impl Into<Option<f64>>, limit: Limit) {
        self.0.push(Figure { name, value: value.into(), limit: Some(limit) });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Figure> {
        self.0.iter()
    }

    /// The median of each figure over several runs of one case. A figure's limit is its loosest: it
    /// differs between runs only by what chance made impossible.
    pub(super) fn medians(runs: &[Self]) -> Self {
        let Some(first) = runs.first() else { return Self::default() };
        let column = |index: usize, figure: &Figure| {
            let values: Vec<f64> = runs.iter().filter_map(|run| run.0.get(index)?.value).collect();
            Figure { name: figure.name, value: median(values), limit: figure.limit }
        };
        Self(first.0.iter().enumerate().map(|(index, figure)| column(index, figure)).collect())
    }
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    // The mean of two infinities, or of one, is infinite.
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_figure_by_figure_and_keep_never() {
        let run = |a: Option<f64>, b: f64| {
            let mut figures = Figures::default();
            figures.note("a", a);
            figures.judge("b", b, Limit::AtMost(5.0));
            figures
        };
        let runs = [run(Some(1.0), 4.0), run(None, f64::INFINITY), run(Some(2.0), 6.0)];
        let found = Figures::medians(&runs);
        let values: Vec<_> = found.iter().map(|figure| (figure.name, figure.value, figure.is_kept())).collect();
        assert_eq!(values, [("a", Some(1.5), true), ("b", Some(6.0), false)]);
        assert_eq!(median(vec![f64::INFINITY, f64::INFINITY, 1.0]), Some(f64::INFINITY));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn a_limit_is_kept_up_to_its_value_and_nothing_measured_breaks_none() {
        let figure = |value, limit| Figure { name: "x", value, limit: Some(limit) };
        for (value, limit, wanted) in [
            (Some(1.0), Limit::AtMost(1.0), true),
            (Some(1.1), Limit::AtMost(1.0), false),
            (Some(f64::INFINITY), Limit::AtMost(60.0), false),
            (Some(0.98), Limit::AtLeast(0.99), false),
            (None, Limit::AtLeast(0.99), true),
        ] {
            assert_eq!(figure(value, limit).is_kept(), wanted, "{value:?} {limit:?}");
        }
    }
}
