//! Medians and exponential decay. Pure.

use std::time::Duration;

/// The median: the middle value, or the mean of the two middle ones; `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values = sorted(values);
    let upper = values.get(values.len() / 2)?;
    Some(f64::midpoint(values[(values.len() - 1) / 2], *upper))
}

/// The median, but the lower one of the two middle values, for measurements that err upwards;
/// `None` without values.
pub fn lower_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values = sorted(values);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The fraction that is left after `elapsed` of a quantity that decays exponentially: 1 at first,
/// 1/e after `time_constant`, and half after ln 2 of it.
pub fn decay(elapsed: Duration, time_constant: Duration) -> f64 {
    (-elapsed.as_secs_f64() / time_constant.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_order_and_outliers() {
        assert_eq!(median([3.0, 1.0, 900.0]), Some(3.0));
        assert_eq!(lower_median([3.0, 1.0, 900.0]), Some(3.0));
        assert_eq!((median([7.0]), lower_median([7.0])), (Some(7.0), Some(7.0)));
    }

    #[test]
    fn of_an_even_number_of_values_the_median_lies_between_the_middle_two_or_is_the_lower_one() {
        let values = [4.0, 900.0, 1.0, 2.0];
        assert_eq!((median(values), lower_median(values)), (Some(3.0), Some(2.0)));
    }

    #[test]
    fn no_values_have_no_median() {
        assert_eq!((median([]), lower_median([])), (None, None));
    }

    #[test]
    fn a_quantity_decays_to_a_third_in_its_time_constant_and_never_grows() {
        let (constant, s) = (Duration::from_secs(60), Duration::from_secs);
        assert_eq!(decay(Duration::ZERO, constant), 1.0);
        assert!((decay(constant, constant) - (-1.0_f64).exp()).abs() < 1e-12);
        let half_life = constant.mul_f64(std::f64::consts::LN_2);
        assert!((decay(half_life, constant) - 0.5).abs() < 1e-9);
        let parts = decay(s(20), constant) * decay(s(40), constant);
        assert!((parts - decay(s(60), constant)).abs() < 1e-12, "two steps are one");
        assert_eq!(decay(Duration::MAX, constant), 0.0);
    }
}
