//! How amounts are written in sentences for operators.

/// A rate with one decimal; an amount that would round to 0 is "less than 0.1", so that no sentence
/// says that nothing is refused.
pub(crate) fn rate(rps: f64) -> String {
    if rps > 0.0 && rps < 0.05 { "less than 0.1".to_owned() } else { format!("{rps:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_amount_is_never_written_as_none() {
        assert_eq!([0.0, 1e-9, 0.049, 0.05, 12.34].map(rate), ["0.0", "less than 0.1", "less than 0.1", "0.1", "12.3"]);
    }
}
