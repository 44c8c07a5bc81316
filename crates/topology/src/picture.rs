//! The machine and a plan as text, at most [`WIDTH`] characters wide.

use std::fmt::Write;

use crate::{Cpus, Device, DeviceKind, L3, Load, Machine, Node, Origin, Placement, Plan, Seat};

/// Characters of a line at most.
const WIDTH: usize = 100;
/// CPUs that are less busy than this are shown without a figure.
const BUSY_SHOWN_PERCENT: u8 = 5;

/// What lines are drawn with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `+`, `-` and `|`
    Ascii,
    /// Box drawing characters
    Utf8,
}

/// The machine: a box for each node with its cores and devices, then what is on no node and what is allowed.
pub fn picture(machine: &Machine, load: &Load, style: Style) -> String {
    let cores = machine.cpus.iter().filter(|cpu| cpu.core == cpu.number).count();
    let memory = machine.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.memory_bytes));
    let mut text = format!(
        "{}, {}, {}, {} of memory\n",
        counted(machine.nodes.len(), "node"),
        counted(cores, "core"),
        counted(machine.cpus.len(), "CPU"),
        size(memory),
    );
    // Columns are the same in all boxes, and boxes are equally wide.
    let all = machine.cpus.iter().map(|cpu| cpu.number).collect();
    let widest = cells(machine, load, &all).iter().map(String::len).max().unwrap_or(0);
    let of_node = |node: &Node| (heading(node, load), inside(machine, load, node, widest));
    let mut boxes: Vec<(String, Vec<String>)> = machine.nodes.iter().map(of_node).collect();
    // Where there is one node only, that is where they are.
    let nowhere = machine.devices.iter().filter(|_| machine.nodes.len() > 1);
    let nowhere = nowhere.filter(|device| machine.nodes_of(&device.name).is_empty());
    let nowhere: Vec<String> = nowhere.map(|device| described(machine, device)).collect();
    if !nowhere.is_empty() {
        boxes.push(("on a node that is not known".into(), nowhere));
    }
    let count = |text: &String| text.chars().count();
    let widest = boxes.iter().flat_map(|(title, lines)| lines.iter().map(count).chain([count(title) + 2]));
    let width = widest.max().unwrap_or(0).min(WIDTH - 4);
    for (title, lines) in &boxes {
        text += &boxed(title, lines, width, style);
    }
    for line in distances(machine).into_iter().chain(limits(machine, load)) {
        text += &line;
        text.push('\n');
    }
    text
}

/// The plan, in words: a line for each thread.
pub fn words(plan: &Plan) -> String {
    let placement = match plan {
        Plan::LeaveToKernel { because } => {
            return wrapped("plan: ", &format!("leave it to the kernel; {because}"));
        }
        Plan::Placed(placement) => placement,
    };
    let (moving, waiting): (Vec<&Seat>, Vec<&Seat>) =
        placement.seats.iter().partition(|seat| seat.kind.moves_bytes());
    let on = if placement.own { "on their own CPUs" } else { "on the CPUs of their nodes" };
    let mut text = format!("plan: {} {on}", counted(moving.len(), "thread"));
    if !waiting.is_empty() {
        let _ = write!(text, ", {} anywhere in the zone", waiting.len());
    }
    text.push('\n');
    let alike = |one: &&Seat, next: &&Seat| {
        let place = |seat: &Seat| (seat.kind, seat.cpus.clone(), seat.node, seat.because.clone());
        place(one) == place(next)
    };
    for seats in moving.chunk_by(alike) {
        let Seat { kind, node, cpus, because, .. } = seats[0];
        let name = if cpus.len() == 1 { "CPU" } else { "CPUs" };
        let place = format!("{name} {cpus}");
        text += &wrapped(&format!("  {kind:<8} {:>5}  {place:<10} node {node:<3}  ", range(seats)), because);
    }
    for seats in waiting.chunk_by(|one, next| one.kind == next.kind) {
        let Seat { kind, because, .. } = seats[0];
        text += &format!("  {kind:<8} {:>5}  zone                 {because}\n", range(seats));
    }
    text += &wrapped("  buffers on node ", &format!("{}: {}", placement.buffers, placement.because));
    text += &wrapped("  zone    CPUs ", &placement.zone.to_string());
    if !placement.others.is_empty() {
        text += &wrapped("  others  CPUs ", &placement.others.to_string());
    }
    text
}

/// `3`, or `3-5`.
fn range(seats: &[&Seat]) -> String {
    match seats {
        [one] => one.index.to_string(),
        [first, .., last] => format!("{}-{}", first.index, last.index),
        [] => String::new(),
    }
}

/// A placement in one line.
pub fn summary(placement: &Placement) -> String {
    let mut text = format!("CPUs {}", placement.zone);
    let moving = placement.seats.iter().filter(|seat| seat.kind.moves_bytes()).collect::<Vec<_>>();
    for (number, seats) in moving.chunk_by(|one, next| one.kind == next.kind).enumerate() {
        let cpus = seats.iter().fold(Cpus::new(), |all, seat| all.or(&seat.cpus));
        let mut devices: Vec<&str> = seats.iter().filter_map(|seat| seat.device.as_deref()).collect();
        devices.sort_unstable();
        devices.dedup();
        let near = if devices.is_empty() { String::new() } else { format!(" (near {})", devices.join(", ")) };
        let _ = write!(text, "{}{} on {cpus}{near}", if number == 0 { "; " } else { ", " }, seats[0].kind);
    }
    text.chars().map(printed).collect()
}

fn heading(node: &Node, load: &Load) -> String {
    let mut heading = format!("node {}", node.number);
    if node.memory_bytes > 0 {
        let _ = write!(heading, ", {} of memory, {} free", size(node.memory_bytes), size(node.free_bytes));
    }
    if let Some(node) = load.nodes.get(&node.number).filter(|node| node.away > 0) {
        let _ = write!(heading, ", {} % of pages went to other nodes", node.away);
    }
    heading
}

/// The cores of each cache, then devices.
fn inside(machine: &Machine, load: &Load, node: &Node, widest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = node.cpus.clone();
    for cache in &machine.caches {
        let here = cache.cpus.and(&node.cpus);
        // A cache of one core is no cache that is shared.
        let shared = here.first().is_some_and(|cpu| machine.siblings(cpu).and(&here) != here);
        if shared {
            lines.extend(row(&cache_name(cache), widest, &cells(machine, load, &here)));
            left = left.without(&here);
        }
    }
    if !left.is_empty() {
        lines.extend(row("cores", widest, &cells(machine, load, &left)));
    }
    if node.cpus.is_empty() {
        lines.push("memory only".into());
    }
    let is_on = |device: &Device| match machine.nodes.len() {
        1 => true,
        _ => machine.nodes_of(&device.name).contains(&node.number),
    };
    let on = machine.devices.iter().filter(|device| is_on(device));
    lines.extend(on.map(|device| described(machine, device)));
    lines
}

fn cache_name(cache: &L3) -> String {
    format!("L{} {}", cache.level, size(cache.bytes))
}

/// Each core as its CPUs, `3+27`, with how busy the busiest is; in parentheses what may not be used.
fn cells(machine: &Machine, load: &Load, cpus: &Cpus) -> Vec<String> {
    let usable = machine.usable();
    let cores = machine.cpus.iter().filter(|cpu| cpus.has(cpu.number) && cpu.core == cpu.number);
    let cell = |core: usize| {
        let siblings = machine.siblings(core);
        let mut cell = siblings.iter().map(|cpu| cpu.to_string()).collect::<Vec<_>>().join("+");
        if siblings.and(&usable).is_empty() {
            cell = format!("({cell})");
        }
        let busy = siblings.iter().map(|cpu| load.of(cpu)).max().unwrap_or(0);
        if busy >= BUSY_SHOWN_PERCENT {
            let _ = write!(cell, ":{busy}%");
        }
        cell
    };
    cores.map(|core| cell(core.number)).collect()
}

/// A name and cells in columns, on as many lines as it takes, all equally long.
fn row(name: &str, widest: usize, cells: &[String]) -> Vec<String> {
    const NAME: usize = 12;
    let across = ((WIDTH - 4 - NAME) / (widest + 2)).max(1);
    let across = cells.len().div_ceil(cells.len().div_ceil(across).max(1)).max(1);
    let line = |(index, cells): (usize, &[String])| {
        let name = if index == 0 { name } else { "" };
        let cells: String = cells.iter().map(|cell| format!("{cell:<0$}", widest + 2)).collect();
        format!("{name:<NAME$}{}", cells.trim_end())
    };
    cells.chunks(across).enumerate().map(line).collect()
}

fn described(machine: &Machine, device: &Device) -> String {
    let kind = match device.kind {
        DeviceKind::Network => "network",
        DeviceKind::Infiniband => "infiniband",
        DeviceKind::Block => "disk",
    };
    let mut text = format!("{kind:<12}{}", device.name);
    if let Some(bytes) = device.bytes.filter(|bytes| *bytes > 0) {
        let _ = write!(text, ", {}", size(bytes));
    }
    if let Some(speed) = device.speed_mbit.filter(|speed| *speed > 0) {
        let _ = match speed % 1000 {
            0 => write!(text, ", {} Gbit/s", speed / 1000),
            _ => write!(text, ", {speed} Mbit/s"),
        };
    }
    if !device.below.is_empty() {
        let _ = write!(text, ", of {}", device.below.join(", "));
    }
    let nodes = machine.nodes_of(&device.name);
    if nodes.len() > 1 {
        let _ = write!(text, " (nodes {})", nodes.into_iter().collect::<Cpus>());
    }
    if device.origin == Origin::Map {
        text += " (map)";
    }
    text
}

/// A table, if there is more than one node and each line fits.
fn distances(machine: &Machine) -> Vec<String> {
    let nodes: Vec<usize> = machine.nodes.iter().map(|node| node.number).collect();
    if nodes.len() < 2 {
        return Vec::new();
    }
    let cell = |number: &dyn std::fmt::Display| format!("{number:>5}");
    let head = nodes.iter().map(|node| cell(node)).collect::<String>();
    let line = |from: &usize| {
        let row: String = nodes.iter().map(|to| cell(&machine.distance(*from, *to))).collect();
        format!("{from:>12}{row}")
    };
    let table: Vec<String> =
        std::iter::once(format!("distance    {head}")).chain(nodes.iter().map(line)).collect();
    if table.iter().all(|line| line.len() <= WIDTH) { table } else { Vec::new() }
}

fn limits(machine: &Machine, load: &Load) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |name: &str, cpus: &Cpus| {
        if !cpus.is_empty() {
            lines.push(wrapped(&format!("{name:<12}"), &format!("CPUs {cpus}")).trim_end().to_owned());
        }
    };
    let nowhere = machine.cpus.iter().filter(|cpu| cpu.node.is_none());
    say("on no node", &nowhere.map(|cpu| cpu.number).collect());
    say("offline", &machine.offline);
    say("isolated", &machine.isolated);
    let all: Cpus = machine.cpus.iter().map(|cpu| cpu.number).collect();
    let usable = machine.usable();
    if usable != all {
        say("allowed", &usable);
    }
    if let Some(quota) = machine.limits.quota_millis {
        lines.push(format!("quota       {}.{} CPUs", quota / 1000, quota % 1000 / 100));
    }
    if !load.cpus.is_empty() {
        lines.push(format!("load        {} %", load.mean(&all)));
    }
    if let Some(pressure) = load.memory_pressure.filter(|pressure| *pressure > 0) {
        lines.push(format!("memory      {pressure} % of the time somebody waited for it"));
    }
    lines
}

/// `width` characters between the sides and the blanks beside them; longer lines are cut.
fn boxed(title: &str, lines: &[String], width: usize, style: Style) -> String {
    let [left_top, right_top, left_bottom, right_bottom, across, down] = match style {
        Style::Ascii => ["+", "+", "+", "+", "-", "|"],
        Style::Utf8 => ["┌", "┐", "└", "┘", "─", "│"],
    };
    let cut = |line: &str, width: usize| line.chars().take(width).map(printed).collect::<String>();
    let title = cut(title, width.saturating_sub(2));
    let mut text = format!(
        "{left_top}{across} {title} {}{right_top}\n",
        across.repeat(width.saturating_sub(title.chars().count() + 1))
    );
    for line in lines {
        let _ = writeln!(text, "{down} {:<width$} {down}", cut(line, width));
    }
    let _ = writeln!(text, "{left_bottom}{}{right_bottom}", across.repeat(width + 2));
    text
}

/// A text after a beginning, broken at blanks and commas where a line would be too long; with an end of line.
fn wrapped(beginning: &str, text: &str) -> String {
    let indent = " ".repeat(beginning.chars().count().min(WIDTH / 2));
    let (mut out, mut line, mut empty) = (String::new(), beginning.to_owned(), true);
    for word in text.split_inclusive([' ', ',']) {
        if !empty && line.chars().count() + word.trim_end().chars().count() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line.clone_from(&indent);
        }
        line.extend(word.chars().map(printed));
        empty = false;
    }
    let _ = writeln!(out, "{}", line.trim_end());
    out
}

/// Names of devices may hold what a terminal obeys.
fn printed(character: char) -> char {
    if character.is_control() { '?' } else { character }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// As people say it.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value >= 99.95 => format!("{value:.0} {}", UNITS[unit]),
        _ => format!("{} {}", format!("{value:.1}").trim_end_matches(".0"), UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_and_stay_whole() {
        let list: String = (0..200).step_by(2).map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",");
        let text = wrapped("zone    CPUs ", &list);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().count() > 3);
        let joined: String = text.split_whitespace().skip(2).collect();
        assert_eq!(joined, list);
        assert_eq!(wrapped("zone ", ""), "zone\n");
        assert_eq!(wrapped("a ", "b\u{1b}[2J"), "a b?[2J\n");
    }

    #[test]
    fn boxes_have_straight_sides() {
        let lines = ["short".into(), "x".repeat(300), String::new()];
        for style in [Style::Ascii, Style::Utf8] {
            for (title, width) in [("a title", 96), ("a title that is longer than the box", 20), ("", 3)] {
                let text = boxed(title, &lines, width, style);
                let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
                assert_eq!(widths, [width + 4; 5], "{text}");
            }
        }
    }
}
