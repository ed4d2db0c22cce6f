//! Words that a fit, its report and its picture share.

use std::fmt;

use crate::fit::input::samples::Window;

/// Bounds of the load bands, as shares of capacity.
pub const BANDS: [(f64, f64); 3] = [(0.0, 0.5), (0.5, 0.8), (0.8, 1.0)];

/// A quantity that is fitted over load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    InEngine,
    Ttft,
    Tbot,
}

impl Quantity {
    pub fn name(self) -> &'static str {
        match self {
            Self::InEngine => "in engine",
            Self::Ttft => "TTFT",
            Self::Tbot => "TBOT",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Self::InEngine => "requests",
            Self::Ttft | Self::Tbot => "ms",
        }
    }

    pub(super) fn of(self, window: &Window) -> f64 {
        match self {
            Self::InEngine => window.in_engine(),
            Self::Ttft => window.ttft_ms,
            Self::Tbot => window.tbot_ms,
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Source of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacitySource {
    Given,
    Saturation,
    LargestLoad,
    IterationLaw,
}

impl fmt::Display for CapacitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "as given",
            Self::Saturation => "what saturated windows served",
            Self::LargestLoad => "the largest load measured, as no window is saturated: the engine may carry more",
            Self::IterationLaw => "from the iteration law, less headroom",
        })
    }
}

/// Load at which the engine is full, in requests/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    pub rps: f64,
    pub source: CapacitySource,
}

/// A load > 0 with as many digits as a measurement can mean.
pub(super) fn four_digits(load: f64, round: fn(f64) -> f64) -> f64 {
    let unit = 10_f64.powi(load.log10().floor() as i32 - 3);
    // Whole numbers are exact, and so is the quotient's nearest number to its short decimal form.
    if unit < 1.0 { round(load / unit) / (1.0 / unit).round() } else { round(load / unit) * unit }
}
