//! A fit as a picture: points, curve, quantile band, load bands and capacity. The crate `plotters`
//! draws it as SVG.

use std::io;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::fitting::{Fit, FittedCurve};
use super::iteration::Derived;
use super::types::BANDS;
use crate::model::Curve;

/// Most points drawn in one panel. Of more, every second, third, ... is drawn: further ones would
/// only hide each other.
const POINTS_MAX: usize = 3_000;

/// Size of one panel and of the title above all of them, in pixels.
const PANEL: (u32, u32) = (410, 420);
const TITLE_HEIGHT: u32 = 56;

/// How far the load axis goes beyond capacity, as a share of it.
const LOAD_AXIS_FRAC: f64 = 1.1;

/// Room above the highest value, as a share of it.
const VALUE_AXIS_FRAC: f64 = 1.08;

/// Font family that every viewer has. With the SVG backend alone, plotters estimates the size of
/// text and reads no font.
const FONT: &str = "sans-serif";

const MEAN: RGBColor = RGBColor(194, 65, 12);
const BAND: RGBColor = RGBColor(251, 146, 60);
const POINT: RGBColor = RGBColor(29, 78, 216);
const LEFT_OUT: RGBColor = RGBColor(100, 116, 139);
const CAPACITY: RGBColor = RGBColor(17, 17, 17);
/// Background of each of [`BANDS`], from low load to high.
const LOAD_BANDS: [RGBColor; BANDS.len()] = [RGBColor(248, 250, 252), RGBColor(241, 245, 249), RGBColor(226, 232, 240)];

/// One quantity over load.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    /// Of the horizontal axis, with its unit.
    pub across: String,
    /// Of the vertical axis, with its unit.
    pub up: String,
    pub points: Vec<(f64, f64)>,
    pub dropped: Vec<(f64, f64)>,
    pub mean: Curve,
    pub band: Option<(Curve, Curve)>,
    /// End of the curve: capacity, or the largest value measured.
    pub end: f64,
    /// Whether `end` is a capacity, which load bands are shares of.
    pub is_capacity: bool,
    /// Load at which measurement ends and continuation begins.
    pub known: f64,
}

/// A row of panels under one title.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    pub title: String,
    pub subtitle: String,
    /// Names of points and band in the legend.
    pub points_name: String,
    pub band_name: Option<String>,
    pub panels: Vec<Panel>,
}

impl Plot {
    /// The fit of profile `name`.
    pub fn of_fit(fit: &Fit, name: &str, source: &str) -> Self {
        let known = fit.report.loads_rps.2;
        let panel = |curve: &FittedCurve| Panel {
            title: curve.quantity.name().to_owned(),
            across: "load, requests/s".to_owned(),
            up: curve.quantity.unit().to_owned(),
            points: curve.points.clone(),
            dropped: curve.dropped.clone(),
            mean: curve.mean.clone(),
            band: Some((curve.low.clone(), curve.high.clone())),
            end: fit.capacity.rps,
            is_capacity: true,
            known,
        };
        let (low, high) = (100.0 * (1.0 - fit.quantile), 100.0 * fit.quantile);
        Self {
            title: format!("Profile {name}"),
            subtitle: format!(
                "{} of {} windows of {source}; capacity {} requests/s, {}",
                fit.report.used, fit.report.read, fit.capacity.rps, fit.capacity.source
            ),
            points_name: "window".to_owned(),
            band_name: Some(format!("quantiles {low:.0} and {high:.0} % of windows")),
            panels: fit.curves.iter().map(panel).collect(),
        }
    }

    /// Curves derived from iteration timings: the timings first, then what follows from them.
    pub fn of_derived(derived: &Derived, name: &str, source: &str) -> Self {
        let rps = derived.capacity.rps;
        let panel = |title: &str, up: &str, points: &[(f64, f64)], mean: &Curve, end: f64| Panel {
            title: title.to_owned(),
            across: "load, requests/s".to_owned(),
            up: up.to_owned(),
            points: points.to_vec(),
            dropped: Vec::new(),
            mean: mean.clone(),
            band: None,
            end,
            is_capacity: true,
            known: end,
        };
        let largest = derived.decode.knots().last().map_or(1.0, |k| k.0);
        let thin = |points: &[(f64, f64)]| points.iter().copied().step_by(10).filter(|p| p.0 <= rps).collect::<Vec<_>>();
        Self {
            title: format!("Profile {name}"),
            subtitle: format!(
                "derived from iteration timings in {source}; {} prompt and {} output tokens; capacity {rps} requests/s",
                derived.workload.prompt_tokens, derived.workload.output_tokens
            ),
            points_name: "timing (first panel), iteration law".to_owned(),
            band_name: None,
            panels: vec![
                Panel {
                    across: "batch, sequences".to_owned(),
                    is_capacity: false,
                    ..panel("iteration", "ms", &derived.decode_points, &derived.decode, largest)
                },
                panel("TTFT", "ms", &thin(&derived.law[1]), &derived.ttft_ms, rps),
                panel("TBOT", "ms", &thin(&derived.law[2]), &derived.tbot_ms, rps),
            ],
        }
    }
}

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;
type Axes<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

impl Plot {
    /// The picture, as a whole SVG document.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        self.draw(&mut out).expect("a string takes all text");
        out
    }

    fn draw(&self, out: &mut String) -> Drawn {
        let columns = self.panels.len().max(1);
        let size = (PANEL.0 * columns as u32, TITLE_HEIGHT + PANEL.1);
        let root = SVGBackend::with_string(out, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, panels) = root.split_vertically(TITLE_HEIGHT);
        title.draw(&Text::new(self.title.as_str(), (16, 10), (FONT, 18)))?;
        title.draw(&Text::new(self.subtitle.as_str(), (16, 36), (FONT, 12).into_font().color(&LEFT_OUT)))?;
        for (panel, area) in self.panels.iter().zip(panels.split_evenly((1, columns))) {
            panel.draw(&area, self)?;
        }
        root.present()
    }
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, plot: &Plot) -> Drawn {
        let (load_max, value_max) = self.axis_ends();
        let mut axes = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 15))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..load_max, 0.0..value_max)?;
        if self.is_capacity {
            let stripe = |((low, high), color): ((f64, f64), RGBColor)| {
                Rectangle::new([(low * self.end, 0.0), (high * self.end, value_max)], color.filled())
            };
            axes.draw_series(BANDS.into_iter().zip(LOAD_BANDS).map(stripe))?;
        }
        axes.configure_mesh()
            .disable_x_mesh()
            .max_light_lines(1)
            .x_desc(&self.across)
            .y_desc(&self.up)
            .x_labels(6)
            .y_labels(6)
            .x_label_formatter(&short)
            .y_label_formatter(&short)
            .draw()?;
        self.draw_points(&mut axes, plot, (load_max, value_max))?;
        self.draw_curves(&mut axes, plot, value_max)?;
        axes.configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .label_font((FONT, 11))
            .draw()
    }

    fn draw_points(&self, axes: &mut Axes<'_, '_>, plot: &Plot, (load_max, value_max): (f64, f64)) -> Drawn {
        let filled = POINT.mix(0.55).filled();
        let hollow = LEFT_OUT.stroke_width(1);
        let thin = |points: &[(f64, f64)]| points.len().div_ceil(POINTS_MAX).max(1);
        let points = self.points.iter().step_by(thin(&self.points));
        axes.draw_series(points.map(|&point| Circle::new(point, 3, filled)))?
            .label(&plot.points_name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 3, filled));
        if !self.dropped.is_empty() {
            // Those of a growing queue lie far beyond the axes, and are drawn at their ends.
            let points = self.dropped.iter().step_by(thin(&self.dropped));
            let points = points.map(|&(load, value)| (load.min(load_max), value.min(value_max)));
            axes.draw_series(points.map(|point| Circle::new(point, 3, hollow)))?
                .label("left out")
                .legend(move |(x, y)| Circle::new((x + 8, y), 3, hollow));
        }
        Ok(())
    }

    fn draw_curves(&self, axes: &mut Axes<'_, '_>, plot: &Plot, value_max: f64) -> Drawn {
        let known = self.known.min(self.end);
        let line = MEAN.stroke_width(2);
        if let (Some((low, high)), Some(name)) = (&self.band, &plot.band_name) {
            // Which share of windows would lie beyond the measured loads is not known.
            let back = corners(low, 0.0, known).into_iter().rev();
            let outline: Vec<_> = corners(high, 0.0, known).into_iter().chain(back).collect();
            axes.draw_series([Polygon::new(outline, BAND.mix(0.28))])?
                .label(name)
                .legend(|(x, y)| Rectangle::new([(x, y - 4), (x + 16, y + 4)], BAND.mix(0.28).filled()));
        }
        axes.draw_series([PathElement::new(corners(&self.mean, 0.0, known), line)])?
            .label("fitted mean")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], line));
        if self.is_continued() {
            let beyond = corners(&self.mean, known, self.end);
            axes.draw_series(DashedLineSeries::new(beyond, 6, 4, line))?
                .label("beyond measurement")
                .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 16, y)], 6, 4, line));
        }
        if self.is_capacity {
            let line = CAPACITY.stroke_width(1);
            let edge = [(self.end, 0.0), (self.end, value_max)];
            axes.draw_series(DashedLineSeries::new(edge, 2, 3, line))?
                .label("capacity")
                .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 16, y)], 2, 3, line));
        }
        Ok(())
    }

    /// Where the axes end. Points that were left out do not count: a growing queue would flatten
    /// everything else.
    fn axis_ends(&self) -> (f64, f64) {
        let band = self.band.as_ref().map(|(_, high)| high.value(self.known.min(self.end)));
        let curves = band.into_iter().chain([self.mean.value(self.end)]);
        let top = self.points.iter().map(|p| p.1).chain(curves).fold(0.0, f64::max);
        (self.end * LOAD_AXIS_FRAC, if top > 0.0 { top * VALUE_AXIS_FRAC } else { 1.0 })
    }

    fn is_continued(&self) -> bool {
        self.known < 0.999 * self.end
    }
}

/// The corners of a curve between two loads.
fn corners(curve: &Curve, from: f64, to: f64) -> Vec<(f64, f64)> {
    let inner = curve.knots().iter().map(|k| k.0).filter(|&load| from < load && load < to);
    let loads = std::iter::once(from).chain(inner).chain(std::iter::once(to));
    loads.map(|load| (load, curve.value(load))).collect()
}

/// A label of an axis, without the tail that sums of steps leave.
fn short(value: &f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_every_part_and_stays_within_its_frame() {
        let mean = Curve::new(vec![(0.0, 10.0), (8.0, 20.0), (10.0, 60.0)]).expect("a curve");
        let panel = Panel {
            title: "TTFT <&>".to_owned(),
            across: "load, requests/s".to_owned(),
            up: "milliseconds".to_owned(),
            points: vec![(1.0, 11.0), (8.0, 20.0)],
            dropped: vec![(50.0, 1e9)],
            mean: mean.clone(),
            band: Some((mean.clone(), mean)),
            end: 10.0,
            is_capacity: true,
            known: 8.0,
        };
        let (points_name, band_name) = ("window".to_owned(), Some("quantiles".to_owned()));
        let plot = Plot { title: "t".to_owned(), subtitle: "s".to_owned(), points_name, band_name, panels: vec![panel] };
        let svg = plot.svg();
        let parts = ["TTFT &lt;&amp;&gt;", "load, requests/s", "milliseconds", "capacity", "left out"];
        for part in parts.into_iter().chain(["beyond measurement", "quantiles", "fitted mean", "window"]) {
            assert!(svg.contains(part), "{part} is missing");
        }
        // Two points and one left out, and one of each in the legend.
        assert_eq!(svg.matches("<circle").count(), 5);
        // The window that was left out lies far beyond both axes, and is drawn in the corner.
        let places = |name: &str| -> Vec<u32> {
            let attribute = format!(" {name}=\"");
            svg.split(&attribute)
                .skip(1)
                .map(|rest| rest.split('"').next().and_then(|n| n.parse().ok()).expect("a number"))
                .collect()
        };
        assert!(places("cx").into_iter().all(|x| x <= PANEL.0), "{svg}");
        assert!(places("cy").into_iter().all(|y| (TITLE_HEIGHT..TITLE_HEIGHT + PANEL.1).contains(&y)), "{svg}");
    }
}
