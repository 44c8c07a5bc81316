//! Which targets are slow, and when: drawn by lot, always the same for a seed; and what was really set at what time.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Rates;
use crate::evaluation::Lottery;

/// How long a thread that changes rates may sleep before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(20);

/// What is to be slow at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// So many targets at a time.
    pub slow: usize,
    /// Others every so often; `None`: always the same.
    pub step: Option<Duration>,
    /// Draws them.
    pub seed: u64,
}

impl Forecast {
    /// Which of `targets` are slow in a step, in order.
    pub fn slow_in(&self, step: u64, targets: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..targets).collect();
        Lottery::new(self.seed.wrapping_mul(0x1_0000_0001).wrapping_add(step << 8)).shuffle(&mut order);
        order.truncate(self.slow.min(targets));
        order.sort_unstable();
        order
    }
}

/// Which targets were slow from when on. Times are since the start of the run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Record {
    /// In order of time, the first at 0.
    pub changes: Vec<(Duration, Vec<usize>)>,
}

impl Record {
    /// A target's rate from each time on, in nanoseconds and bytes a second.
    pub fn rates(&self, target: usize, rates: Rates) -> Vec<(u64, u64)> {
        let rate = |slow: &Vec<usize>| if slow.contains(&target) { rates.slow } else { rates.healthy };
        let mut all: Vec<(u64, u64)> =
            self.changes.iter().map(|(from, slow)| (from.as_nanos() as u64, rate(slow))).collect();
        all.dedup_by_key(|(_, rate)| *rate);
        all
    }

    /// From when to when a target was slow, up to `end`; in seconds.
    pub fn slow_spans(&self, target: usize, end: f64) -> Vec<(f64, f64)> {
        let mut spans: Vec<(f64, f64)> = Vec::new();
        for (index, (from, slow)) in self.changes.iter().enumerate() {
            let until = self.changes.get(index + 1).map_or(end, |(next, _)| next.as_secs_f64().min(end));
            let from = from.as_secs_f64();
            if !slow.contains(&target) || until <= from {
                continue;
            }
            match spans.last_mut() {
                Some(last) if last.1 == from => last.1 = until,
                _ => spans.push((from, until)),
            }
        }
        spans
    }

    /// It was slow at some time before `end`, in seconds.
    pub fn was_slow(&self, target: usize, end: f64) -> bool {
        !self.slow_spans(target, end).is_empty()
    }
}

/// Sets what the first step says. `set` gives a target a rate.
pub fn begin(
    forecast: Forecast,
    targets: usize,
    rates: Rates,
    set: &dyn Fn(usize, u64) -> io::Result<()>,
) -> io::Result<()> {
    let slow = forecast.slow_in(0, targets);
    (0..targets)
        .try_for_each(|target| set(target, if slow.contains(&target) { rates.slow } else { rates.healthy }))
}

/// Changes rates, as a forecast says, from `started` until `stop`. What the first step says has been set.
pub fn follow(
    forecast: Forecast,
    targets: usize,
    rates: Rates,
    set: &dyn Fn(usize, u64) -> io::Result<()>,
    started: Instant,
    stop: &AtomicBool,
) -> io::Result<Record> {
    let mut slow = forecast.slow_in(0, targets);
    let mut record = Record { changes: vec![(Duration::ZERO, slow.clone())] };
    let Some(step) = forecast.step.filter(|_| forecast.slow > 0) else { return Ok(record) };
    for number in 1.. {
        let due = started + step * number;
        while Instant::now() < due {
            if stop.load(Ordering::Acquire) {
                return Ok(record);
            }
            std::thread::sleep(NAP.min(due.saturating_duration_since(Instant::now())));
        }
        let next = forecast.slow_in(u64::from(number), targets);
        for target in slow.iter().filter(|target| !next.contains(target)) {
            set(*target, rates.healthy)?;
        }
        for target in next.iter().filter(|target| !slow.contains(target)) {
            set(*target, rates.slow)?;
        }
        record.changes.push((started.elapsed(), next.clone()));
        slow = next;
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const RATES: Rates = Rates { healthy: 100, slow: 10 };

    fn record() -> Record {
        let at = |seconds, slow: &[usize]| (Duration::from_secs(seconds), slow.to_vec());
        Record { changes: vec![at(0, &[1]), at(3, &[2]), at(6, &[2, 1]), at(9, &[0])] }
    }

    #[test]
    fn what_is_slow_depends_on_seed_and_step_alone_and_moves_everywhere() {
        let forecast = Forecast { slow: 2, step: None, seed: 7 };
        assert_eq!(forecast.slow_in(4, 11), forecast.slow_in(4, 11));
        let mut times = [0; 11];
        for step in 0..1100 {
            let slow = forecast.slow_in(step, 11);
            assert!(slow.len() == 2 && slow[0] < slow[1] && slow[1] < 11, "{slow:?}");
            slow.into_iter().for_each(|target| times[target] += 1);
        }
        assert!(times.iter().all(|count| (140..260).contains(count)), "{times:?}");
        let other = Forecast { seed: 8, ..forecast };
        assert!((0..20).any(|step| forecast.slow_in(step, 11) != other.slow_in(step, 11)));
        assert_eq!(Forecast { slow: 9, ..forecast }.slow_in(0, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_record_tells_rates_and_spans_of_each_target() {
        let record = record();
        assert_eq!(record.rates(0, RATES), [(0, 100), (9_000_000_000, 10)]);
        assert_eq!(record.rates(2, RATES), [(0, 100), (3_000_000_000, 10), (9_000_000_000, 100)]);
        assert_eq!(record.slow_spans(2, 20.0), [(3.0, 9.0)]);
        assert_eq!(record.slow_spans(1, 7.0), [(0.0, 3.0), (6.0, 7.0)]);
        assert!(record.was_slow(0, 9.5) && !record.was_slow(0, 9.0) && !record.was_slow(3, 99.0));
    }

    #[test]
    fn rates_are_set_as_the_forecast_says_until_it_is_to_stop() {
        let forecast = Forecast { slow: 1, step: Some(Duration::from_millis(15)), seed: 3 };
        let now = Mutex::new(vec![0; 5]);
        let stop = AtomicBool::new(false);
        let changes = Mutex::new(0);
        let set = |target: usize, rate: u64| {
            now.lock().unwrap()[target] = rate;
            let mut changes = changes.lock().unwrap();
            *changes += 1;
            stop.store(*changes > 12, Ordering::Release);
            Ok(())
        };
        begin(forecast, 5, RATES, &set).unwrap();
        assert_eq!(now.lock().unwrap().iter().filter(|rate| **rate == 10).count(), 1);
        let record = follow(forecast, 5, RATES, &set, Instant::now(), &stop).unwrap();
        assert!(record.changes.len() > 2);
        let last = &record.changes.last().unwrap().1;
        let expected: Vec<u64> = (0..5).map(|target| if last.contains(&target) { 10 } else { 100 }).collect();
        assert_eq!(*now.lock().unwrap(), expected);
        for (step, (_, slow)) in record.changes.iter().enumerate() {
            assert_eq!(*slow, forecast.slow_in(step as u64, 5));
        }
    }
}
