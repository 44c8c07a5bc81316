//! Lines about a transfer, in words.

use std::time::Duration;

use haul_model::report::Stats;

use crate::report::Setup;

/// `1 file`, `2 files`
pub fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `1.5 GiB`
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value >= 100.0 => format!("{value:.0} {}", UNITS[unit]),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..=59 => format!("{seconds} s"),
        60..=3599 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds % 3600 / 60),
    }
}

/// While the scan runs, totals are only what was found so far, and no time is promised.
pub fn progress_line(stats: &Stats, totals_are_final: bool, rate: f64) -> String {
    let done = stats.bytes_there();
    let files = stats.files_there();
    let more = if totals_are_final { "" } else { "+" };
    let mut line = format!("{}/s", size(rate as u64));
    // In front of what may be cut off where a terminal is narrow.
    if !totals_are_final {
        line.push_str("  still scanning");
    } else if rate >= 1.0 && stats.bytes_total > done {
        let left = (stats.bytes_total - done) as f64 / rate;
        // What has failed may be among what is left.
        let at_most = if stats.files_failed > 0 { "at most " } else { "" };
        line.push_str(&format!("  {at_most}{} left", duration(left as u64)));
    }
    line.push_str(&format!(
        "  {} of {}{more}  {files} of {}{more} file{}",
        size(done),
        size(stats.bytes_total),
        stats.files_total,
        if stats.files_total == 1 && totals_are_final { "" } else { "s" },
    ));
    if stats.files_failed > 0 {
        line.push_str(&format!("  {} failed", stats.files_failed));
    }
    line
}

/// What came of a transfer, in one line.
pub fn summary_line(
    stats: &Stats,
    state: &str,
    elapsed: Duration,
    setup: &Setup,
    cipher: Option<&str>,
) -> String {
    let seconds = elapsed.as_secs_f64();
    let mut parts = Vec::new();
    if state == "done" && stats.files_total == 0 && stats.directories > 0 {
        let number = stats.directories;
        let directories = if number == 1 { "1 directory".into() } else { format!("{number} directories") };
        parts.push(format!("done: {directories} without files; 0 bytes moved"));
    } else if state == "done" && stats.files_done == 0 {
        let there = match stats.files_skipped {
            1 => "the file is".into(),
            files => format!("all {files} files are"),
        };
        parts.push(format!("nothing to do: {there} there already; 0 bytes moved"));
    } else {
        let rate = stats.bytes_sent as f64 / seconds.max(0.001);
        parts.push(format!(
            "{state}: {} of {}, {} sent in {seconds:.1} s ({}/s)",
            stats.files_there(),
            counted(stats.files_total, "file"),
            size(stats.bytes_sent),
            size(rate as u64),
        ));
        if stats.files_skipped > 0 || stats.bytes_skipped > 0 {
            let skipped = size(stats.bytes_skipped);
            parts.push(format!("{} and {skipped} were there already", counted(stats.files_skipped, "file")));
        }
    }
    if stats.files_failed > 0 {
        parts.push(format!("{} failed", stats.files_failed));
    }
    if stats.objects_repaired > 0 {
        parts.push(format!("{} sent again", counted(stats.objects_repaired, "object")));
    }
    if stats.bytes_spilled > 0 {
        parts.push(format!("{} waited in the spill", size(stats.bytes_spilled)));
    }
    if stats.hard_links > 0 && stats.files_done + stats.files_skipped > 0 {
        parts.push(format!("{} copied as files", counted(stats.hard_links, "hard link")));
    }
    if state == "done" && stats.files_done > 0 {
        parts.push(match setup.verified_of(stats) {
            Some(hash) => format!("durable, {}-verified", hash.name().to_uppercase()),
            None => "durable".into(),
        });
    }
    match (setup.encrypted, cipher) {
        (Some(true), Some(cipher)) => parts.push(format!("encrypted ({cipher})")),
        (Some(true), None) => parts.push("encrypted".into()),
        (Some(false), _) => parts.push("data in CLEAR text (--plain)".into()),
        (None, _) => {}
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_promised_while_the_scan_runs_or_nothing_moves() {
        let stats = Stats { files_total: 10, bytes_total: 1 << 30, bytes_done: 1 << 20, ..Stats::default() };
        let scanning = progress_line(&stats, false, 1e6);
        assert!(scanning.contains("10+ files") && !scanning.contains("left"), "{scanning}");
        let known = progress_line(&stats, true, 1e6);
        assert!(known.contains(" left") && !known.contains("at most"), "{known}");
        let failed = Stats { files_failed: 1, ..stats };
        assert!(progress_line(&failed, true, 1e6).contains("at most "));
        assert!(!progress_line(&stats, true, 0.0).contains("left"));
    }

    /// A terminal has 80 columns.
    #[test]
    fn how_long_it_takes_is_seen_however_much_there_is() {
        let (files_total, bytes_total) = (80_000_000, 999 << 40);
        let (files_done, bytes_done, files_failed) = (12_345_678, 123 << 40, 1234);
        let stats =
            Stats { files_total, bytes_total, files_done, bytes_done, files_failed, ..Stats::default() };
        let line = progress_line(&stats, true, 1.1e8);
        let left = line.find("left").unwrap();
        assert!(left < 40 && line.find("files").unwrap() < 78, "{line}");
    }

    #[test]
    fn whatever_the_other_end_has_counted_is_told() {
        let most = u64::MAX;
        let (files_done, files_skipped, bytes_done, bytes_skipped) = (most, 1, most, most);
        let stats = Stats { files_done, files_skipped, bytes_done, bytes_skipped, ..Stats::default() };
        assert!(progress_line(&stats, true, 1.0).contains(&format!("{most} of 0 files")));
        let summary = summary_line(&stats, "done", Duration::ZERO, &Setup::default(), None);
        assert!(summary.starts_with(&format!("done: {most} of 0 files")), "{summary}");
    }

    #[test]
    fn sizes_have_three_digits_at_most() {
        assert_eq!([size(0), size(1023), size(1536), size(1 << 30)], ["0 B", "1023 B", "1.5 KiB", "1.0 GiB"]);
    }
}
