//! Metrics as Prometheus reads them: text format 0.0.4, written by the `prometheus` crate.
//!
//! Every metric belongs to a [`Family`] that is declared once; samples give values for its labels,
//! and nothing else can be exposed.

use std::fmt;

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The declaration of one metric name.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, and starts anew with the process; its name ends in `_total`.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

impl Family {
    /// The unit by the name's ending, as Prometheus' conventions have it.
    pub fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let units = [
            ("_requests_per_second", "requests/s"),
            ("_seconds", "s"),
            ("_bytes", "bytes"),
            ("_ratio", "1 (a share or a ratio)"),
        ];
        units.iter().find(|(ending, _)| name.ends_with(ending)).map_or("1", |&(_, unit)| unit)
    }
}

/// Samples of all families, collected for one scrape.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<MetricFamily>,
}

impl Exposition {
    /// Begins the samples of a family. A family without samples is left out.
    pub fn family(&mut self, family: &'static Family) -> Samples<'_> {
        let mut out = MetricFamily::default();
        out.set_name(family.name.to_owned());
        out.set_help(family.help.to_owned());
        out.set_field_type(match family.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::Histogram => MetricType::HISTOGRAM,
        });
        self.families.push(out);
        Samples { family, out: self.families.last_mut().expect("a family was just added") }
    }

    pub fn into_text(mut self) -> String {
        self.families.retain(|family| !family.get_metric().is_empty());
        prometheus::TextEncoder::new().encode_to_string(&self.families).expect("families have names and samples")
    }
}

/// The samples of one family.
#[derive(Debug)]
pub struct Samples<'e> {
    family: &'static Family,
    out: &'e mut MetricFamily,
}

impl Samples<'_> {
    /// Adds a value of a counter or gauge. `labels` are values, in the order of the family's
    /// labels.
    pub fn add(&mut self, labels: &[&str], value: f64) {
        let mut metric = self.metric(labels);
        match self.family.kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            Kind::Histogram => unreachable!("{} is a histogram", self.family.name),
        }
        self.out.mut_metric().push(metric);
    }

    /// Adds a histogram. `bounds` ascend; `buckets` has one count more, of what is above the last
    /// bound, and is not cumulated.
    pub fn add_histogram(&mut self, labels: &[&str], bounds: &[f64], buckets: &[u64], sum: f64) {
        assert_eq!(self.family.kind, Kind::Histogram, "{} is no histogram", self.family.name);
        let mut count = 0;
        let cumulated = buckets.iter().zip(bounds.iter().copied().chain([f64::INFINITY])).map(|(&in_bucket, bound)| {
            count += in_bucket;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        let cumulated: Vec<Bucket> = cumulated.filter(|bucket| bucket.upper_bound().is_finite()).collect();
        let mut histogram = Histogram::default();
        histogram.set_bucket(cumulated);
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum);
        let mut metric = self.metric(labels);
        metric.set_histogram(histogram);
        self.out.mut_metric().push(metric);
    }

    fn metric(&self, values: &[&str]) -> Metric {
        assert_eq!(values.len(), self.family.labels.len(), "labels of {}", self.family.name);
        let pair = |(name, value): (&&str, &&str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        Metric::from_label(self.family.labels.iter().zip(values).map(pair).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static AGE: Family = Family { name: "ilb_age_seconds", kind: Kind::Gauge, labels: &[], help: "Age." };
    static XS: Family = Family { name: "ilb_x_total", kind: Kind::Counter, labels: &["engine", "code"], help: "Xs." };
    static WAIT: Family = Family { name: "ilb_wait_seconds", kind: Kind::Histogram, labels: &["engine"], help: "Waits." };

    #[test]
    fn samples_carry_escaped_labels_and_families_are_announced_once() {
        let mut metrics = Exposition::default();
        metrics.family(&AGE).add(&[], 1.5);
        let mut xs = metrics.family(&XS);
        xs.add(&["a\"b\\c\nd", "2xx"], 3.0);
        xs.add(&["z", "2xx"], 4.0);
        let wanted = "# HELP ilb_age_seconds Age.\n# TYPE ilb_age_seconds gauge\nilb_age_seconds 1.5\n\
            # HELP ilb_x_total Xs.\n# TYPE ilb_x_total counter\n\
            ilb_x_total{engine=\"a\\\"b\\\\c\\nd\",code=\"2xx\"} 3\nilb_x_total{engine=\"z\",code=\"2xx\"} 4\n";
        assert_eq!(metrics.into_text(), wanted);
    }

    #[test]
    fn buckets_are_cumulated_and_the_last_one_is_the_count() {
        let mut metrics = Exposition::default();
        metrics.family(&WAIT).add_histogram(&["e1"], &[0.005, 1.0], &[2, 0, 3], 7.25);
        let wanted = "# HELP ilb_wait_seconds Waits.\n# TYPE ilb_wait_seconds histogram\n\
            ilb_wait_seconds_bucket{engine=\"e1\",le=\"0.005\"} 2\nilb_wait_seconds_bucket{engine=\"e1\",le=\"1\"} 2\n\
            ilb_wait_seconds_bucket{engine=\"e1\",le=\"+Inf\"} 5\n\
            ilb_wait_seconds_sum{engine=\"e1\"} 7.25\nilb_wait_seconds_count{engine=\"e1\"} 5\n";
        assert_eq!(metrics.into_text(), wanted);
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        let mut metrics = Exposition::default();
        metrics.family(&XS);
        assert_eq!(metrics.into_text(), "");
    }
}
