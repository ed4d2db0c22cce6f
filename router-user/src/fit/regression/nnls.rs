//! Least squares with no coefficient below zero.
//!
//! Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23: an active-set method that
//! is exact after finitely many steps. The design is first reduced by one QR factorisation, which
//! keeps every scalar product among its columns, so that the work after it does not depend on the
//! number of rows and nothing is squared.

/// Share of a column's length below which its projection on the residual is rounding error.
const TOLERANCE: f64 = 1e-11;

/// Passes over the columns before the search ends. Three are the rule of thumb (Lawson and Hanson),
/// and only rounding errors need more.
const PASSES_MAX: usize = 30;

/// The `x >= 0` that minimises `|A x - b|`.
///
/// Shape: `columns` are those of `A`, each as long as `b`; `x` has one entry per column. Columns of
/// zeros get 0.
pub(crate) fn nnls(columns: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let lengths: Vec<f64> = columns.iter().map(|column| dot(column, column).sqrt()).collect();
    // Columns of length one make the tolerance mean the same for each.
    let scaled: Vec<Vec<f64>> = (columns.iter().zip(&lengths))
        .map(|(column, &length)| column.iter().map(|value| if length > 0.0 { value / length } else { 0.0 }).collect())
        .collect();
    let (a, b) = triangle(scaled, b.to_vec());
    let tolerance = TOLERANCE * dot(&b, &b).sqrt();
    let mut x = vec![0.0; a.len()];
    let mut free = vec![false; a.len()];
    let mut barred = vec![false; a.len()];
    for _ in 0..PASSES_MAX * a.len() {
        let residual = residual(&a, &b, &x);
        let pull = |j: usize| dot(&a[j], &residual);
        let candidates = (0..a.len()).filter(|&j| !free[j] && !barred[j] && pull(j) > tolerance);
        let Some(entering) = candidates.max_by(|&i, &j| pull(i).total_cmp(&pull(j))) else { break };
        free[entering] = true;
        let before = x.clone();
        settle(&a, &b, &mut x, &mut free);
        // A column that depends on the free ones is thrown out again by rounding: it would enter
        // for ever.
        if !free[entering] && x == before {
            barred[entering] = true;
        } else {
            barred.fill(false);
        }
    }
    x.iter().zip(&lengths).map(|(x, &length)| if length > 0.0 { x / length } else { 0.0 }).collect()
}

/// Moves `x` towards the least-squares solution over the free columns, and fixes at 0 those it
/// would take below.
fn settle(a: &[Vec<f64>], b: &[f64], x: &mut [f64], free: &mut [bool]) {
    loop {
        let places: Vec<usize> = (0..a.len()).filter(|&j| free[j]).collect();
        let target = least_squares(places.iter().map(|&j| a[j].clone()).collect(), b.to_vec());
        let step = (places.iter().zip(&target))
            .filter(|&(_, &target)| target <= 0.0)
            .map(|(&j, &target)| if x[j] > target { x[j] / (x[j] - target) } else { 0.0 })
            .fold(1.0, f64::min);
        for (&j, &target) in places.iter().zip(&target) {
            x[j] += step * (target - x[j]);
            if target <= 0.0 && x[j] <= 1e-15 {
                x[j] = 0.0;
                free[j] = false;
            }
        }
        if target.iter().all(|&target| target > 0.0) {
            return;
        }
    }
}

fn residual(a: &[Vec<f64>], b: &[f64], x: &[f64]) -> Vec<f64> {
    let mut residual = b.to_vec();
    for (column, &x) in a.iter().zip(x).filter(|(_, x)| **x != 0.0) {
        for (r, value) in residual.iter_mut().zip(column) {
            *r -= x * value;
        }
    }
    residual
}

/// Least squares over all columns; a column that depends on those before it gets 0.
pub(crate) fn least_squares(columns: Vec<Vec<f64>>, b: Vec<f64>) -> Vec<f64> {
    let (r, b) = triangle(columns, b);
    let mut x = vec![0.0; r.len()];
    for j in (0..r.len().min(b.len())).rev() {
        let pivot = r[j][j];
        let known: f64 = (j + 1..r.len()).map(|k| r[k][j] * x[k]).sum();
        let length = dot(&r[j], &r[j]).sqrt();
        x[j] = if pivot.abs() > 1e-13 * length { (b[j] - known) / pivot } else { 0.0 };
    }
    x
}

/// Householder reflections: the upper triangle `R` and `Q' b`, both cut to as many rows as there
/// are columns.
fn triangle(mut columns: Vec<Vec<f64>>, mut b: Vec<f64>) -> (Vec<Vec<f64>>, Vec<f64>) {
    let rows = b.len();
    for j in 0..columns.len().min(rows) {
        let (done, rest) = columns.split_at_mut(j + 1);
        let column = &mut done[j];
        let norm = dot(&column[j..], &column[j..]).sqrt();
        if norm == 0.0 {
            continue;
        }
        let alpha = if column[j] > 0.0 { -norm } else { norm };
        let mut mirror = column[j..].to_vec();
        mirror[0] -= alpha;
        let square = dot(&mirror, &mirror);
        for other in rest.iter_mut().map(|c| &mut c[j..]).chain(std::iter::once(&mut b[j..])) {
            let factor = 2.0 * dot(&mirror, other) / square;
            other.iter_mut().zip(&mirror).for_each(|(o, m)| *o -= factor * m);
        }
        column[j] = alpha;
        column[j + 1..].fill(0.0);
    }
    let kept = rows.min(columns.len());
    columns.iter_mut().for_each(|column| column.truncate(kept));
    b.truncate(kept);
    (columns, b)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The best of all subsets of columns whose plain least-squares solution has no negative entry.
    fn brute_force(columns: &[Vec<f64>], b: &[f64]) -> f64 {
        let square = |x: &[f64]| {
            let r = residual(columns, b, x);
            dot(&r, &r)
        };
        let mut best = square(&vec![0.0; columns.len()]);
        for subset in 1..1_u32 << columns.len() {
            let places: Vec<usize> = (0..columns.len()).filter(|j| subset & (1 << j) != 0).collect();
            let part = least_squares(places.iter().map(|&j| columns[j].clone()).collect(), b.to_vec());
            if part.iter().all(|&x| x >= 0.0) {
                let mut x = vec![0.0; columns.len()];
                places.iter().zip(part).for_each(|(&j, value)| x[j] = value);
                best = best.min(square(&x));
            }
        }
        best
    }

    #[test]
    fn known_cases() {
        let check = |columns: &[Vec<f64>], b: &[f64], wanted: &[f64]| {
            let x = nnls(columns, b);
            assert!(x.iter().zip(wanted).all(|(x, w)| (x - w).abs() < 1e-9), "{x:?}, wanted {wanted:?}");
        };
        check(&[vec![1.0, 0.0], vec![0.0, 1.0]], &[3.0, -2.0], &[3.0, 0.0]);
        check(&[vec![1.0, 1.0, 1.0], vec![0.0, 1.0, 2.0]], &[1.0, 3.0, 5.0], &[1.0, 2.0]);
        // The unbounded solution is (5, -2): the slope is fixed at 0 and the mean is left.
        check(&[vec![1.0, 1.0, 1.0], vec![0.0, 1.0, 2.0]], &[5.0, 3.0, 1.0], &[3.0, 0.0]);
        check(&[vec![0.0, 0.0], vec![2.0, 0.0]], &[4.0, 1.0], &[0.0, 2.0]);
        check(&[], &[1.0], &[]);
    }

    #[test]
    fn equal_columns_end_and_share_one_answer() {
        let column = vec![1.0, 2.0, 3.0];
        let x = nnls(&[column.clone(), column.clone(), column], &[2.0, 4.0, 6.0]);
        assert!((x.iter().sum::<f64>() - 2.0).abs() < 1e-9, "{x:?}");
    }

    proptest! {
        #[test]
        fn meets_the_optimality_conditions_and_brute_force(
            columns in proptest::collection::vec(proptest::collection::vec(-3.0..3.0_f64, 8), 1..7),
            b in proptest::collection::vec(-5.0..5.0_f64, 8),
        ) {
            let x = nnls(&columns, &b);
            let r = residual(&columns, &b, &x);
            for (column, &x) in columns.iter().zip(&x) {
                prop_assert!(x >= 0.0);
                let pull = dot(column, &r);
                prop_assert!(pull <= 1e-7 && (x == 0.0 || pull.abs() <= 1e-7), "x {x}, pull {pull}");
            }
            prop_assert!((dot(&r, &r) - brute_force(&columns, &b)).abs() <= 1e-7);
        }
    }
}
