//! A fit as a picture: points, curve, quantile band, load bands and capacity, as SVG.

use std::fmt::{self, Write};

use super::fitting::{Fit, FittedCurve};
use super::iteration::Derived;
use super::report::BANDS;
use crate::model::Curve;

/// Points drawn in one panel; of more, every so many are: they only hide each other.
const MAX_POINTS: usize = 3_000;

/// Size of a panel's plot area, and the room around it for its texts, in pixels.
const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 84.0;

/// How far the load axis goes beyond capacity.
const BEYOND: f64 = 1.1;

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
    /// Where the axis ends to speak of: capacity, or the largest value.
    pub end: f64,
    /// Whether `end` is a capacity, which load bands are shares of.
    pub is_capacity: bool,
    /// Where measurement ends and continuation begins.
    pub known: f64,
}

/// A row of panels under one title.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    pub title: String,
    pub subtitle: String,
    /// What points and band are, for the legend.
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

    /// The picture, as a whole SVG document.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("a string takes all text");
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let width = (LEFT + WIDTH + RIGHT) * self.panels.len() as f64;
        let height = TOP + HEIGHT + BOTTOM;
        write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#333\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
             <text x=\"16\" y=\"46\" fill=\"#666\">{}</text>\n",
            escaped(&self.title),
            escaped(&self.subtitle)
        )?;
        for (index, panel) in self.panels.iter().enumerate() {
            Frame::new(panel, LEFT + index as f64 * (LEFT + WIDTH + RIGHT)).write(out)?;
        }
        self.legend(out, height - 20.0)?;
        out.push_str("</svg>\n");
        Ok(())
    }

    fn legend(&self, out: &mut String, y: f64) -> fmt::Result {
        let swatch = |paint: &str| line((0.0, y), (20.0, y), paint);
        let mut entries = vec![(circle(10.0, y, false), self.points_name.as_str())];
        if self.panels.iter().any(|p| !p.dropped.is_empty()) {
            entries.push((circle(10.0, y, true), "left out"));
        }
        entries.push((swatch(MEAN), "fitted mean"));
        if self.panels.iter().any(Panel::is_continued) {
            entries.push((swatch(&format!("{MEAN} {CONTINUED}")), "beyond measurement"));
        }
        if let Some(name) = &self.band_name {
            entries.push((format!("<rect y=\"{}\" width=\"20\" height=\"10\" {BAND}/>", y - 5.0), name));
        }
        entries.push((swatch(CAPACITY), "capacity"));
        let mut x = LEFT;
        for (mark, name) in entries {
            writeln!(
                out,
                "<g transform=\"translate({x} 0)\">{mark}<text x=\"26\" y=\"{}\">{}</text></g>",
                y + 4.0,
                escaped(name)
            )?;
            // Seven pixels are the width of a letter of this size, generously.
            x += 26.0 + 7.0 * name.chars().count() as f64 + 16.0;
        }
        Ok(())
    }
}

impl Panel {
    fn is_continued(&self) -> bool {
        self.known < 0.999 * self.end
    }
}

const MEAN: &str = "stroke=\"#c2410c\" stroke-width=\"2\" fill=\"none\"";
const CONTINUED: &str = "stroke-dasharray=\"5 3\"";
const BAND: &str = "fill=\"#fb923c\" fill-opacity=\"0.28\"";
const CAPACITY: &str = "stroke=\"#111\" stroke-width=\"1.5\" stroke-dasharray=\"2 2\"";

/// A panel on the page, with its scales.
struct Frame<'p> {
    panel: &'p Panel,
    left: f64,
    most: (f64, f64),
}

impl<'p> Frame<'p> {
    fn new(panel: &'p Panel, left: f64) -> Self {
        // Points that were left out, such as those of a growing queue, must not press the rest to the ground.
        let band = panel.band.as_ref().map(|(_, high)| high.value(panel.known.min(panel.end)));
        let ends = band.into_iter().chain([panel.mean.value(panel.end)]);
        let top = panel.points.iter().map(|p| p.1).chain(ends).fold(0.0, f64::max);
        Self { panel, left, most: (panel.end * BEYOND, if top > 0.0 { top * 1.08 } else { 1.0 }) }
    }

    fn known(&self) -> f64 {
        self.panel.known.min(self.panel.end)
    }

    fn x(&self, load: f64) -> f64 {
        self.left + WIDTH * load / self.most.0
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT * (1.0 - (value / self.most.1).clamp(0.0, 1.0))
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let title = escaped(&self.panel.title);
        let (left, bottom) = (self.left, TOP + HEIGHT);
        writeln!(out, "<text x=\"{left}\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{title}</text>", TOP - 22.0)?;
        self.bands(out)?;
        self.axes(out)?;
        writeln!(out, "<rect x=\"{left}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>")?;
        if let Some((low, high)) = &self.panel.band {
            // What share of windows lies where there are none is not known.
            let mut path = self.path(low, 0.0, self.known());
            path.reverse();
            let outline: Vec<_> = self.path(high, 0.0, self.known()).into_iter().chain(path).collect();
            writeln!(out, "<polygon points=\"{}\" {BAND}/>", joined(&outline))?;
        }
        let step = self.panel.points.len().div_ceil(MAX_POINTS).max(1);
        for &(load, value) in self.panel.points.iter().step_by(step) {
            writeln!(out, "{}", circle(self.x(load), self.y(value), false))?;
        }
        for &(load, value) in self.panel.dropped.iter().step_by(self.panel.dropped.len().div_ceil(MAX_POINTS).max(1)) {
            writeln!(out, "{}", circle(self.x(load.min(self.most.0)), self.y(value), true))?;
        }
        let known = self.known();
        writeln!(out, "<polyline points=\"{}\" {MEAN}/>", joined(&self.path(&self.panel.mean, 0.0, known)))?;
        if self.panel.is_continued() {
            let path = joined(&self.path(&self.panel.mean, known, self.panel.end));
            writeln!(out, "<polyline points=\"{path}\" {MEAN} {CONTINUED}/>")?;
        }
        if self.panel.is_capacity {
            let x = self.x(self.panel.end);
            writeln!(out, "{}", line((x, TOP), (x, bottom), CAPACITY))?;
        }
        Ok(())
    }

    /// The load bands of the report, as stripes with their bounds in percent of capacity.
    fn bands(&self, out: &mut String) -> fmt::Result {
        if !self.panel.is_capacity {
            return Ok(());
        }
        for ((low, high), shade) in BANDS.into_iter().zip(["#f8fafc", "#f1f5f9", "#e2e8f0"]) {
            let (x, end) = (self.x(low * self.panel.end), self.x(high * self.panel.end));
            writeln!(out, "<rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{HEIGHT}\" fill=\"{shade}\"/>", end - x)?;
            let text = format!("{:.0} %", 100.0 * high);
            writeln!(
                out,
                "<text x=\"{end:.1}\" y=\"{}\" fill=\"#888\" font-size=\"10\" text-anchor=\"middle\">{text}</text>",
                TOP - 5.0
            )?;
        }
        Ok(())
    }

    fn axes(&self, out: &mut String) -> fmt::Result {
        let bottom = TOP + HEIGHT;
        for value in ticks(self.most.1) {
            let y = self.y(value);
            writeln!(out, "{}", line((self.left, y), (self.left + WIDTH, y), "stroke=\"#ddd\""))?;
            let text = value.to_string();
            writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", self.left - 6.0, y + 4.0)?;
        }
        for load in ticks(self.most.0) {
            let x = self.x(load);
            writeln!(out, "{}", line((x, bottom), (x, bottom + 4.0), "stroke=\"#999\""))?;
            writeln!(out, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{load}</text>", bottom + 17.0)?;
        }
        let middle = self.left + WIDTH / 2.0;
        writeln!(
            out,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 36.0,
            escaped(&self.panel.across)
        )?;
        let (x, y) = (self.left - 52.0, TOP + HEIGHT / 2.0);
        let turn = format!("transform=\"rotate(-90 {x} {y})\"");
        writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" {turn}>{}</text>", escaped(&self.panel.up))
    }

    /// Corners of a curve between two loads, on the page.
    fn path(&self, curve: &Curve, from: f64, to: f64) -> Vec<(f64, f64)> {
        let inner = curve.knots().iter().map(|k| k.0).filter(|&load| from < load && load < to);
        let loads = std::iter::once(from).chain(inner).chain(std::iter::once(to));
        loads.map(|load| (self.x(load), self.y(curve.value(load)))).collect()
    }
}

fn joined(corners: &[(f64, f64)]) -> String {
    corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn circle(x: f64, y: f64, is_hollow: bool) -> String {
    let paint = if is_hollow { "fill=\"none\" stroke=\"#64748b\"" } else { "fill=\"#1d4ed8\" fill-opacity=\"0.55\"" };
    format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" {paint}/>")
}

fn line(from: (f64, f64), to: (f64, f64), paint: &str) -> String {
    format!("<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {paint}/>", from.0, from.1, to.0, to.1)
}

/// Multiples of 1, 2 or 5 times a power of ten, five or so from 0 to `most`.
fn ticks(most: f64) -> Vec<f64> {
    let power = (most / 5.0).log10().floor() as i32;
    let unit = |factor: f64| factor * 10_f64.powi(power);
    let step = [1.0, 2.0, 5.0, 10.0].map(unit).into_iter().find(|step| most / step <= 6.0).unwrap_or(most);
    // The nearest number with so many decimals prints without a tail.
    let decimals = usize::try_from(-power).unwrap_or(0);
    let count = (most / step + 1e-9) as usize;
    (0..=count).map(|i| format!("{:.decimals$}", i as f64 * step).parse().unwrap_or(0.0)).collect()
}

fn escaped(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).fold(String::new(), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(6.6), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(0.33), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(ticks(1_150.0), [0.0, 200.0, 400.0, 600.0, 800.0, 1_000.0]);
        for most in [1e-3, 0.7, 1.0, 5.0, 42.0, 1e6] {
            assert!((3..=7).contains(&ticks(most).len()), "{:?}", ticks(most));
        }
    }

    #[test]
    fn the_picture_has_every_part_and_stays_within_its_frame() {
        let mean = Curve::new(vec![(0.0, 10.0), (8.0, 20.0), (10.0, 60.0)]).expect("a curve");
        let panel = Panel {
            title: "TTFT <&>".to_owned(),
            across: "load, requests/s".to_owned(),
            up: "ms".to_owned(),
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
        for part in ["TTFT &lt;&amp;&gt;", "load, requests/s", ">ms<", "capacity", "left out", "beyond measurement", "quantiles"]
        {
            assert!(svg.contains(part), "{part} is missing");
        }
        // Two points and one left out, and one of each in the legend.
        assert_eq!(svg.matches("<circle").count(), 5);
        // What was left out lies far beyond both axes, and is drawn in the corner.
        assert!(svg.contains(&format!("cx=\"{:.1}\" cy=\"{TOP:.1}\"", LEFT + WIDTH)), "{svg}");
    }
}
