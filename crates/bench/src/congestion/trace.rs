//! What the targets of a file system were asked for, and what that says of a run.

use super::weather::Record;

/// One request at one target. Times are seconds since the start of the run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request {
    /// When it came.
    pub start: f64,
    /// When it was answered.
    pub end: f64,
    /// Where.
    pub target: usize,
    /// Of which file.
    pub inode: u64,
    /// How much.
    pub bytes: u64,
    /// Which way.
    pub is_write: bool,
}

/// Reads lines of `start,end,target,inode,offset,bytes,rw`; `shift` is added to their times. The error is the line.
/// What concerns the metadata server is left out.
pub fn parse(text: &str, shift: f64) -> Result<Vec<Request>, String> {
    let lines = text.lines().filter(|line| !line.starts_with("start,"));
    let requests = lines.map(|line| parse_line(line, shift).ok_or_else(|| line.to_owned()));
    requests.filter_map(Result::transpose).collect()
}

/// `Some(None)` where no target is concerned.
fn parse_line(line: &str, shift: f64) -> Option<Option<Request>> {
    let fields: Vec<&str> = line.split(',').collect();
    let [start, end, target, inode, _, bytes, direction] = fields[..] else { return None };
    if target == "mds" {
        return Some(None);
    }
    Some(Some(Request {
        start: start.parse::<f64>().ok()? + shift,
        end: end.parse::<f64>().ok()? + shift,
        target: target.parse().ok()?,
        inode: inode.parse().ok()?,
        bytes: bytes.parse().ok()?,
        is_write: direction == "w",
    }))
}

/// Bytes of each target.
pub fn bytes_by_target(requests: &[Request], targets: usize) -> Vec<u64> {
    let mut bytes = vec![0; targets];
    requests.iter().for_each(|request| bytes[request.target] += request.bytes);
    bytes
}

/// How far the fullest target is above the mean, as a share of it.
pub fn imbalance(bytes: &[u64]) -> f64 {
    let most = bytes.iter().copied().max().unwrap_or(0) as f64;
    let mean = bytes.iter().sum::<u64>() as f64 / bytes.len().max(1) as f64;
    if mean > 0.0 { most / mean - 1.0 } else { 0.0 }
}

/// When a target had moved all but a hundredth of its bytes. What a mover notes beside files that wait for another target (haul's
/// tables of hashes, a few bytes) comes as late as those.
pub fn nearly_end(requests: &[Request], target: usize) -> f64 {
    let mut ends: Vec<(f64, u64)> = requests
        .iter()
        .filter(|request| request.target == target)
        .map(|request| (request.end, request.bytes))
        .collect();
    ends.sort_by(|left, right| left.0.total_cmp(&right.0));
    let all: u64 = ends.iter().map(|(_, bytes)| bytes).sum();
    let mut moved = 0;
    let reached = ends.iter().find(|(_, bytes)| {
        moved += bytes;
        moved.saturating_mul(100) >= all.saturating_mul(99)
    });
    reached.map_or(0.0, |(end, _)| *end)
}

/// How many requests were under way at targets while they were slow, and at the others, as seconds of requests and seconds
/// of targets.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Waiting {
    slow: f64,
    slow_seconds: f64,
    healthy: f64,
    healthy_seconds: f64,
}

impl Waiting {
    /// In a run that took so many seconds.
    pub fn of(requests: &[Request], record: &Record, targets: usize, seconds: f64) -> Waiting {
        let spans: Vec<Vec<(f64, f64)>> =
            (0..targets).map(|target| record.slow_spans(target, seconds)).collect();
        let slow_seconds: f64 = spans.iter().flatten().map(|(from, until)| until - from).sum();
        let mut waiting = Waiting {
            slow_seconds,
            healthy_seconds: targets as f64 * seconds - slow_seconds,
            ..Waiting::default()
        };
        for request in requests {
            let within =
                |(from, until): &(f64, f64)| (request.end.min(*until) - request.start.max(*from)).max(0.0);
            let slow: f64 = spans[request.target].iter().map(within).sum();
            waiting.slow += slow;
            waiting.healthy += request.end - request.start - slow;
        }
        waiting
    }

    /// Of two ends together.
    pub fn with(self, other: Waiting) -> Waiting {
        Waiting {
            slow: self.slow + other.slow,
            slow_seconds: self.slow_seconds + other.slow_seconds,
            healthy: self.healthy + other.healthy,
            healthy_seconds: self.healthy_seconds + other.healthy_seconds,
        }
    }

    /// Requests under way at a slow target, on average; none if none was slow.
    pub fn at_slow(&self) -> Option<f64> {
        (self.slow_seconds > 0.0).then(|| self.slow / self.slow_seconds)
    }

    /// Requests under way at a healthy target, on average.
    pub fn at_healthy(&self) -> f64 {
        if self.healthy_seconds > 0.0 { self.healthy / self.healthy_seconds } else { 0.0 }
    }

    /// Of all requests under way, the share that was at slow targets.
    pub fn share_slow(&self) -> f64 {
        let all = self.slow + self.healthy;
        if all > 0.0 { self.slow / all } else { 0.0 }
    }
}

/// A stretch of time in which one file had most of what a target did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stretch {
    /// Where.
    pub target: usize,
    /// From when.
    pub from: f64,
    /// Until when.
    pub until: f64,
    /// Which file: its number in the order of inodes.
    pub file: usize,
}

/// What each target worked on, in steps of a `count`th of the run, neighbours joined.
pub fn stretches(requests: &[Request], targets: usize, seconds: f64, count: usize) -> Vec<Stretch> {
    let mut inodes: Vec<u64> = requests.iter().map(|request| request.inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    let step = seconds / count as f64;
    let mut cells = vec![std::collections::BTreeMap::<usize, f64>::new(); targets * count];
    for request in requests {
        let Ok(file) = inodes.binary_search(&request.inode) else { continue };
        // What is served is what was last waited for: the end of a request says when its bytes moved.
        let at = ((request.end / step) as usize).min(count - 1);
        *cells[request.target * count + at].entry(file).or_default() += request.bytes as f64;
    }
    let mut found: Vec<Stretch> = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        let (target, at) = (index / count, index % count);
        let Some((file, _)) = cell.iter().max_by(|one, other| one.1.total_cmp(other.1)) else { continue };
        let (from, until) = (at as f64 * step, (at + 1) as f64 * step);
        match found.last_mut() {
            Some(last) if last.target == target && last.file == *file && from - last.until < step / 2.0 => {
                last.until = until;
            }
            _ => found.push(Stretch { target, from, until, file: *file }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(start: f64, end: f64, target: usize, inode: u64) -> Request {
        Request { start, end, target, inode, bytes: 100, is_write: false }
    }

    #[test]
    fn lines_are_read_and_the_metadata_server_is_left_out() {
        let text = "start,end,target,inode,offset,bytes,rw\n1.5,2.0,3,77,4096,1000,r\n1.0,1.1,mds,1,0,5,w\n\
                    2.0,2.5,0,78,0,7,w\n";
        let requests = parse(text, -1.0).unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0], Request { bytes: 1000, ..request(0.5, 1.0, 3, 77) });
        assert!(requests[1].is_write && requests[1].bytes == 7);
        assert_eq!(parse("1,2,3", 0.0), Err("1,2,3".into()));
        assert!(parse("x,2,3,4,5,6,r", 0.0).is_err());
    }

    #[test]
    fn balance_is_the_fullest_against_the_mean() {
        assert_eq!(bytes_by_target(&[request(0.0, 1.0, 2, 1), request(0.0, 1.0, 2, 1)], 3), [0, 0, 200]);
        assert!((imbalance(&[100, 110, 90]) - 0.1).abs() < 1e-12);
        assert_eq!(imbalance(&[0, 0]), 0.0);
    }

    #[test]
    fn requests_are_counted_where_and_while_a_target_is_slow() {
        let at = |seconds, slow: &[usize]| (Duration::from_secs(seconds), slow.to_vec());
        let record = Record { changes: vec![at(0, &[0]), at(2, &[])] };
        // Two at the slow one for all of its two seconds, one of them a second longer; one at the other for a second.
        let requests = [request(0.0, 2.0, 0, 1), request(0.0, 3.0, 0, 1), request(1.0, 2.0, 1, 1)];
        let waiting = Waiting::of(&requests, &record, 2, 4.0);
        assert_eq!(waiting.at_slow(), Some(2.0));
        assert!((waiting.at_healthy() - 2.0 / 6.0).abs() < 1e-12);
        assert!((waiting.share_slow() - 4.0 / 6.0).abs() < 1e-12);
        assert_eq!(Waiting::of(&requests, &Record::default(), 2, 4.0).at_slow(), None);
        assert_eq!((nearly_end(&requests, 0), nearly_end(&requests, 7)), (3.0, 0.0));
        let late = [Request { bytes: 990, ..requests[0] }, Request { bytes: 10, end: 50.0, ..requests[0] }];
        assert_eq!(nearly_end(&late, 0), late[0].end, "a few bytes that come late");
        assert_eq!(waiting.with(waiting).at_slow(), Some(2.0));
    }

    #[test]
    fn stretches_join_steps_of_the_same_file() {
        let requests = [
            request(0.0, 0.5, 0, 50),
            request(0.0, 1.5, 0, 50),
            request(0.0, 2.5, 0, 60),
            request(0.0, 2.6, 0, 60),
            request(0.0, 2.7, 0, 50),
            request(0.0, 3.9, 1, 60),
        ];
        let stretch = |target, from, until, file| Stretch { target, from, until, file };
        let expected = [stretch(0, 0.0, 2.0, 0), stretch(0, 2.0, 3.0, 1), stretch(1, 3.0, 4.0, 1)];
        assert_eq!(stretches(&requests, 2, 4.0, 4), expected);
    }
}
