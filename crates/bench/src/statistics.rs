//! Means, and the intervals in which they lie.

/// A mean with half the width of its 99 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval; infinite with fewer than two values.
    pub half_width: f64,
    /// Of how many values.
    pub count: usize,
}

impl Estimate {
    /// Of independent values; none of none.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        if count == 1 {
            return Some(Estimate { mean, half_width: f64::INFINITY, count });
        }
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt();
        Some(Estimate { mean, half_width: error * t_quantile(count - 1), count })
    }

    /// How much `of` is above `than`, two independent means: the quantile is that of the smaller sample, which makes the
    /// interval rather too wide.
    pub fn difference(of: &[f64], than: &[f64]) -> Option<Estimate> {
        let (of, than) = (Estimate::of(of)?, Estimate::of(than)?);
        let count = of.count.min(than.count);
        let error = |estimate: Estimate| estimate.half_width / t_quantile(estimate.count - 1);
        let half_width = match count {
            1 => f64::INFINITY,
            _ => error(of).hypot(error(than)) * t_quantile(count - 1),
        };
        Some(Estimate { mean: of.mean - than.mean, half_width, count })
    }

    /// The upper end of the interval.
    pub fn upper(&self) -> f64 {
        self.mean + self.half_width
    }

    /// In another unit.
    pub fn times(self, factor: f64) -> Estimate {
        Estimate { mean: self.mean * factor, half_width: self.half_width * factor.abs(), ..self }
    }
}

/// The 99.5 % quantile of Student's t: half of what a two-sided 99 % interval needs.
fn t_quantile(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977,
        2.947, 2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763,
        2.756, 2.750,
    ];
    match freedom {
        0 => f64::INFINITY,
        1..=30 => TABLE[freedom - 1],
        // The first terms of the expansion around the normal quantile.
        _ => {
            let z = 2.575_829_f64;
            z + (z.powi(3) + z) / (4.0 * freedom as f64)
                + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * (freedom as f64).powi(2))
        }
    }
}

/// The value in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_known_values_is_known() {
        // 1 to 10: mean 5.5, standard error 0.957427, t(9) = 3.250.
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let estimate = Estimate::of(&values).unwrap();
        assert!((estimate.mean - 5.5).abs() < 1e-12);
        assert!((estimate.half_width - 3.1116).abs() < 1e-3, "{estimate:?}");
        assert!((estimate.times(-2.0).half_width - 6.2233).abs() < 1e-3);
    }

    #[test]
    fn the_interval_of_a_difference_has_the_errors_of_both() {
        let one: Vec<f64> = (1..=10).map(f64::from).collect();
        let other: Vec<f64> = one.iter().map(|value| value + 2.0).collect();
        let difference = Estimate::difference(&other, &one).unwrap();
        assert!((difference.mean - 2.0).abs() < 1e-12);
        // sqrt(2) times 3.1116.
        assert!((difference.half_width - 4.4005).abs() < 1e-3, "{difference:?}");
        assert!(Estimate::difference(&[1.0], &other).unwrap().half_width.is_infinite());
    }

    #[test]
    fn one_value_proves_nothing() {
        assert_eq!(Estimate::of(&[]), None);
        assert!(Estimate::of(&[3.0]).unwrap().half_width.is_infinite());
    }

    #[test]
    fn quantiles_go_on_smoothly_behind_the_table() {
        assert!((t_quantile(31) - 2.744).abs() < 2e-3);
        assert!((t_quantile(60) - 2.660).abs() < 1e-3);
        assert!((t_quantile(120) - 2.617).abs() < 1e-3);
        assert!((t_quantile(1_000_000) - 2.576).abs() < 1e-3);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
