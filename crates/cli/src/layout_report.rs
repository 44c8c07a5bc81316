//! What `haul layout` prints: a table of files, or a JSON object for each; then how evenly targets are filled.

use std::collections::BTreeMap;
use std::io::{self, Write};

use haul_model::layout::{Component, Stripes};
use haul_model::{Failure, Layout, TargetId};
use haul_storage::layout::stripe::{Count, Part, Plan, Pool, Where};
use haul_storage::layout::{Kind, Layouts};
use serde_json::{Value, json};

use crate::paths::{json as json_line, show};
use crate::report::{failed_event, path_fields};
use crate::told::size;

/// So many rows are collected before the widths of columns are fixed.
const ROWS_ALIGNED: usize = 256;
/// So many targets of a file are named in the table.
const TARGETS_SHOWN: usize = 4;
/// A picture is no narrower, however narrow the terminal is.
const BAR_CHARACTERS_MIN: usize = 4;

/// A file or directory.
pub struct Row {
    pub path: Vec<u8>,
    /// Who knew; `None` where nobody did.
    pub kind: Option<Kind>,
    pub what: What,
}

/// What is to be told of it.
pub enum What {
    File {
        size: u64,
        layout: Layout,
    },
    /// How new files in it are striped.
    Directory(Option<Plan>),
}

/// Size, stripes, bytes of a stripe, kind, targets, path.
type Cells = [String; 6];
const HEADS: [&str; 6] = ["size", "stripes", "of", "kind", "targets", "path"];

/// Prints rows as they come.
pub struct Report<'a, W: Write> {
    layouts: &'a Layouts,
    out: W,
    json: bool,
    rows: Vec<Cells>,
    widths: [usize; 6],
    headed: bool,
    files: u64,
    bytes: u64,
    targets: BTreeMap<TargetId, u64>,
}

impl<'a, W: Write> Report<'a, W> {
    /// Nothing is printed yet.
    pub fn new(layouts: &'a Layouts, out: W, json: bool) -> Self {
        let widths = HEADS.map(str::len);
        let (rows, targets) = (Vec::new(), BTreeMap::new());
        Report { layouts, out, json, rows, widths, headed: false, files: 0, bytes: 0, targets }
    }

    /// Whether failures belong into the output.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// One file or directory.
    pub fn row(&mut self, row: Row) -> io::Result<()> {
        if let What::File { size, layout } = &row.what {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(*size);
            for (target, bytes) in layout.shares(*size) {
                let sum = self.targets.entry(target).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        if self.json {
            let event = self.event(&row);
            return writeln!(self.out, "{}", json_line(&event));
        }
        let cells = self.cells(&row);
        self.rows.extend(cells);
        if self.rows.len() >= ROWS_ALIGNED { self.flush() } else { Ok(()) }
    }

    /// In JSON: one path that cannot be looked at.
    pub fn failed(&mut self, path: &[u8], failure: Failure) -> io::Result<()> {
        writeln!(self.out, "{}", json_line(&failed_event(path, failure)))
    }

    /// Prints what was collected.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.rows.is_empty() && !self.headed {
            self.headed = true;
            self.rows.insert(0, HEADS.map(str::to_owned));
        }
        for row in &self.rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let widths = self.widths;
        for [bytes, stripes, of, kind, targets, path] in std::mem::take(&mut self.rows) {
            writeln!(
                self.out,
                "{bytes:>0$}  {stripes:>1$}  {of:>2$}  {kind:<3$}  {targets:<4$}  {path}",
                widths[0], widths[1], widths[2], widths[3], widths[4]
            )?;
        }
        self.out.flush()
    }

    /// The rest, and how evenly targets are filled.
    pub fn finish(mut self, failed: u64) -> io::Result<()> {
        if self.json {
            let targets: Vec<_> = self
                .balance()
                .into_iter()
                .map(|(name, bytes)| json!({"name": name, "bytes": bytes}))
                .collect();
            let event = json!({
                "event": "summary", "files_total": self.files + failed, "files_failed": failed,
                "bytes_total": self.bytes, "bytes_on_no_target": self.on_none(), "targets": targets,
            });
            writeln!(self.out, "{}", json_line(&event))?;
            return self.out.flush();
        }
        self.flush()?;
        if self.files > 0 {
            let picture = picture(&self.balance(), self.on_none(), terminal_width());
            let files = if self.files == 1 { "1 file".into() } else { format!("{} files", self.files) };
            let targets = self.targets.len();
            let targets = if targets == 1 { "1 target".into() } else { format!("{targets} targets") };
            write!(self.out, "\n{files}, {} on {targets}\n{picture}", size(self.bytes))?;
        }
        self.out.flush()
    }

    fn on_none(&self) -> u64 {
        self.bytes.saturating_sub(self.targets.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))
    }

    /// Each target with its bytes. Two file systems may have targets of one name: then the mount is told, too.
    fn balance(&self) -> Vec<(String, u64)> {
        let all = self.layouts.targets();
        let mut names: BTreeMap<&str, u32> = BTreeMap::new();
        all.iter().for_each(|target| *names.entry(&target.name).or_default() += 1);
        let used = all.iter().filter_map(|target| Some((target, *self.targets.get(&target.id)?)));
        let told = used.map(|(target, bytes)| {
            let mount = (names[&*target.name] > 1).then(|| self.layouts.mount_of(target)).flatten();
            let name = show(target.name.as_bytes());
            (mount.map_or(name.clone(), |mount| format!("{name} at {}", show(mount.point.as_bytes()))), bytes)
        });
        let mut told: Vec<_> = told.collect();
        told.sort();
        told
    }

    fn names(&self, stripes: &Stripes) -> Vec<String> {
        stripes.targets().iter().map(|target| self.layouts.describe(*target).to_string()).collect()
    }

    fn cells(&self, row: &Row) -> Vec<Cells> {
        let path = show(&row.path);
        let kind = row.kind.map_or_else(String::new, |kind| kind.to_string());
        match &row.what {
            What::Directory(None) => {
                vec![["directory".into(), String::new(), String::new(), kind, "no default".into(), path]]
            }
            What::Directory(Some(plan)) => {
                let mut above = String::from("directory");
                let rows = plan.parts().iter().map(|part| {
                    let (count, of) = (count(part), of(part));
                    let pool =
                        part.pool.as_ref().map_or_else(String::new, |pool| format!(" in {}", pool.as_str()));
                    let end =
                        if plan.parts().len() > 1 { format!(" {}", until(part.end)) } else { String::new() };
                    let first = std::mem::take(&mut above);
                    let shown = if first.is_empty() { String::new() } else { path.clone() };
                    let kind = if first.is_empty() { String::new() } else { kind.clone() };
                    [first, count, of, kind, format!("new files{end}{pool}"), shown]
                });
                rows.collect()
            }
            What::File { size: bytes, layout } => match layout.components() {
                [component] => vec![self.part(component, size(*bytes), kind, path)],
                components => {
                    let parts = format!("{} parts", components.len());
                    let whole = [size(*bytes), String::new(), String::new(), kind, parts, path];
                    let parts = components.iter().map(|component| {
                        let range =
                            format!("  from {} {}", size(component.range.start), until(component.range.end));
                        self.part(component, String::new(), String::new(), range)
                    });
                    std::iter::once(whole).chain(parts).collect()
                }
            },
        }
    }

    fn part(&self, component: &Component, bytes: String, kind: String, path: String) -> Cells {
        let Some(stripes) = &component.stripes else {
            return [bytes, "0".into(), String::new(), kind, "none yet".into(), path];
        };
        let names = self.names(stripes);
        let shown: Vec<_> = names.iter().take(TARGETS_SHOWN).map(|name| show(name.as_bytes())).collect();
        let more = names.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let of = if stripes.size() == u64::MAX { String::new() } else { size(stripes.size()) };
        [bytes, stripes.width().to_string(), of, kind, shown.join(" ") + &more, path]
    }

    fn event(&self, row: &Row) -> Value {
        let mut event = match &row.what {
            What::File { size, layout } => {
                let mut event = path_fields("layout", &row.path);
                event.insert("size".into(), (*size).into());
                let parts = layout.components().iter().map(|component| {
                    let stripes = component.stripes.as_ref();
                    json!({
                        "start": component.range.start,
                        "end": some_end(component.range.end),
                        "stripes": stripes.map_or(0, Stripes::width),
                        "stripe_size": stripes.and_then(|stripes| some_end(stripes.size())),
                        "targets": stripes.map(|stripes| self.names(stripes)).unwrap_or_default(),
                    })
                });
                event.insert("parts".into(), parts.collect());
                event
            }
            What::Directory(plan) => {
                let mut event = path_fields("directory", &row.path);
                let parts = plan.as_ref().map(|plan| {
                    let parts = plan.parts().iter().map(|part| {
                        json!({
                            "end": some_end(part.end),
                            "stripes": count(part),
                            "stripe_size": part.stripe_size,
                            "pool": part.pool.as_ref().map(Pool::as_str),
                        })
                    });
                    parts.collect::<Value>()
                });
                event.insert("default".into(), parts.unwrap_or(Value::Null));
                event
            }
        };
        event.insert("kind".into(), row.kind.map(|kind| kind.to_string()).into());
        Value::Object(event)
    }
}

/// `u64::MAX` stands for the end of the file, and for a stripe without end.
fn some_end(end: u64) -> Option<u64> {
    (end != u64::MAX).then_some(end)
}

fn until(end: u64) -> String {
    some_end(end).map_or_else(|| "to the end".into(), |end| format!("to {}", size(end)))
}

fn count(part: &Part) -> String {
    match (part.place, part.count) {
        (Where::Metadata, _) => "MDT".into(),
        (_, Count::Default) => "default".into(),
        (_, Count::All) => "all".into(),
        (_, Count::Exactly(count)) => count.to_string(),
    }
}

fn of(part: &Part) -> String {
    match part.stripe_size {
        0 => String::new(),
        bytes => size(bytes.into()),
    }
}

/// A bar for each target, as wide as the terminal allows, and how far the fullest is above the mean.
fn picture(balance: &[(String, u64)], on_none: u64, width: usize) -> String {
    let cut = |name: &str, characters: usize| match name.char_indices().nth(characters) {
        None => name.to_owned(),
        // The end of a name says more than its beginning.
        Some(_) => {
            let skipped = name.chars().count() - characters.saturating_sub(2);
            format!("..{}", name.chars().skip(skipped).collect::<String>())
        }
    };
    let name_width =
        balance.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min((width / 3).max(8));
    let most = balance.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let sum: u128 = balance.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
    // Two blanks, the bar, two blanks, a size of at most 8 characters, a blank, a percentage of 5.
    let bar_width = width.saturating_sub(name_width + 2 + 2 + 8 + 1 + 5).max(BAR_CHARACTERS_MIN);
    let mut text = String::new();
    for (name, bytes) in balance {
        let filled = (u128::from(*bytes) * bar_width as u128).div_ceil(u128::from(most.max(1))) as usize;
        let percent = (u128::from(*bytes) * 100 + sum / 2) / sum.max(1);
        let (name, bar, bytes) = (cut(name, name_width), "#".repeat(filled), size(*bytes));
        text += &format!("{name:<name_width$}  {bar:<bar_width$}  {bytes:>8} {percent:>3} %\n");
    }
    if balance.len() > 1 && sum > 0 {
        let mean = sum as f64 / balance.len() as f64;
        text += &format!("fullest: {:.2} x the mean\n", most as f64 / mean);
    }
    if on_none > 0 {
        text += &format!("{} on no target yet\n", size(on_none));
    }
    text
}

/// Characters in a line: of the terminal, else what the shell says, else 80.
fn terminal_width() -> usize {
    let terminal =
        rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().map(|found| usize::from(found.ws_col));
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.filter(|width| *width > 0).or_else(said).unwrap_or(80).clamp(20, 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(bytes: &[u64]) -> Vec<(String, u64)> {
        bytes.iter().enumerate().map(|(index, bytes)| (format!("OST{index:04x}"), *bytes)).collect()
    }

    #[test]
    fn bars_are_as_long_as_shares_and_fit_the_terminal() {
        let text = picture(&balance(&[100 << 20, 50 << 20, 0]), 0, 60);
        let bars: Vec<_> = text.lines().map(|line| line.matches('#').count()).collect();
        assert_eq!(bars, [35, 18, 0, 0]);
        assert!(text.contains("67 %") && text.contains("33 %") && text.contains(" 0 %"), "{text}");
        assert!(text.contains("fullest: 2.00 x the mean"));
        for width in 40..200 {
            let longest = picture(&balance(&[1, 1 << 60, 1 << 40]), 7, width);
            let longest = longest.lines().map(|line| line.chars().count()).max().unwrap();
            assert_eq!(longest, width);
        }
        assert!(picture(&balance(&[1]), 5, 80).ends_with("5 B on no target yet\n"));
        assert_eq!(picture(&[], 0, 80), "");
        assert!(!picture(&balance(&[0, 0]), 0, 80).contains("NaN"));
    }

    #[test]
    fn long_names_are_cut_where_they_are_alike() {
        let names = |n: u64| (format!("a-host-with-a-long-name:/and/a/long/path/brick{n}"), n);
        let text = picture(&[names(1), names(2)], 0, 60);
        assert!(text.contains("../brick1") || text.contains("path/brick1"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    }
}
