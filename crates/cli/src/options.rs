//! The command line: each flag is declared here, once. Help, man page and completions are generated from it.

mod bench;
mod mistyped;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
pub use haul_model::size::parse as parse_size;
use haul_model::{Code, HashKind};
use haul_mover::Error;
use haul_storage::layout::stripe::StripeSpec;

pub use self::bench::*;
use crate::congestion::{SKIPS_MAX, Time};
use crate::report::ended;
use crate::ssh::quoted;

/// Moves datasets between file systems and hosts, and never loses its place.
#[derive(Parser, Debug)]
#[command(
    name = "haul",
    version,
    arg_required_else_help = true,
    args_override_self = true,
    max_term_width = 100
)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Copy files and directories, here or between hosts; the same command again continues
    #[command(override_usage = "haul cp [OPTIONS] SOURCE... DEST")]
    Cp(Copy),
    /// List transfers, and which of them can be continued
    Status(Status),
    /// Stop a transfer; with --discard also forget it and remove its unfinished files
    Stop(Stop),
    /// Look into object logs
    Log(Log),
    /// Show which targets (OSTs, bricks, disks) hold files, and how evenly; only reads
    Layout(Layout),
    /// Show nodes, cores, devices and load of this host, and where the threads of a transfer belong
    Topology(Topology),
    /// Show what a copy would do, with each setting and where it comes from
    #[command(override_usage = "haul explain [OPTIONS] SOURCE... DEST")]
    Explain(Copy),
    /// Measure haul on this host
    Bench(Bench),
    /// The far end of a transfer; started through ssh, not by hand
    #[command(hide = true)]
    Serve(Serve),
    /// Print the man page or shell completions
    Generate(Generate),
}

const COPY_EXIT_CODES: &str = "\
Exit codes:
  0    all done: every file is there and durable
  1    the transfer failed (no space, state directory not writable, policy, ...),
       or what it has to tell cannot be written
  2    the command is not well formed
  3    finished, but some files failed; each is named
  4    the other end cannot be reached
  130  interrupted

Running the same command again continues where it stopped. A finished transfer moves 0 bytes.";

/// `haul cp`
#[derive(Args, Debug, Clone)]
#[command(after_help = COPY_EXIT_CODES)]
pub struct Copy {
    /// What to copy, and last where to: paths, or [user@]host:path (one side only)
    #[arg(required = true, num_args = 1.., value_name = "SOURCE... DEST")]
    pub paths: Vec<OsString>,
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Also keep owner and group, by number (nothing is kept of them unless root is at the destination); modes, without setuid and setgid, and times are always kept
    #[arg(short, long)]
    pub preserve: bool,
    /// Name each file as it is done
    #[arg(short, long)]
    pub verbose: bool,
    /// At the end, show where the time of both ends went (-v does, too; not with -q)
    #[arg(long)]
    pub profile: bool,
    /// No progress line and no summary; what fails is still named
    #[arg(short, long)]
    pub quiet: bool,
    /// One JSON event a line on stdout; the last one is the summary
    #[arg(long)]
    pub json: bool,
    /// Send data in clear text (it is still hashed, and streams still prove who they are)
    #[arg(long)]
    pub plain: bool,
    /// How contents are checked on their way: blake3, xxh3 (finds damage, not malice) or none [default: blake3]
    #[arg(long, value_enum, value_name = "HASH", hide_possible_values = true)]
    pub hash: Option<HashWord>,
    /// Data streams [default: one for each core, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: Option<u16>,
    /// Buffer memory of each end at most, e.g. 256MiB; it takes what the path needs [default: 256MiB, more for a long
    /// network at the end that writes]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Bytes of an object, a power of two from 64KiB to 64MiB [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub object_size: Option<u64>,
    /// Files up to this size, and to that of an object, travel in bundles; 0: only empty ones
    /// [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bundle_below: Option<u64>,
    /// Threads of each end that read or write contents [default: two for each target, one for each core at least]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub io_threads: Option<u16>,
    /// How objects of big files are read and written at each end: posix, uring (several requests at a time) or auto: measured
    /// for each device [default: auto]
    #[arg(long, value_enum, value_name = "ENGINE", hide_possible_values = true)]
    pub engine: Option<EngineWord>,
    /// Through the page cache or past it: buffered, direct or auto: measured for each device [default: auto]
    #[arg(long, value_enum, value_name = "IO", hide_possible_values = true)]
    pub io: Option<IoWord>,
    /// What is done about storage targets that are slow: adaptive, lads, layout or none [default: adaptive]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub congestion: Option<Congestion>,
    /// T: a MiB that takes a storage target longer than this is slow, e.g. 20ms; for lads and adaptive [default: 3 times the
    /// median of all targets]
    #[arg(long, value_name = "TIME")]
    pub congestion_threshold: Option<Time>,
    /// M: so many requests go to other targets before one that is over T is tried again; for lads [default: how many times
    /// slower than the median it is]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SKIPS_MAX)))]
    pub congestion_skips: Option<u32>,
    /// Seconds until a read or write of one of several storage targets is given up that does not answer [default: 30, or 20
    /// times what is usual there], and making, syncing or naming a file [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub hang_after: Option<u64>,
    /// Whether storage targets are shared with other transfers on the same host: share or ignore [default: share]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub neighbours: Option<Neighbours>,
    /// Whether threads are put on processors near the disks and network cards that they work with: auto or off
    /// [default: auto]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub topology: Option<Seating>,
    /// Stripes of new files on Lustre: COUNT[:SIZE[:POOL]], e.g. 8:4MiB; -1 is all targets
    /// [default: as chosen at the source, else one for each GiB]
    #[arg(long, value_name = "STRIPES", allow_negative_numbers = true)]
    pub stripe: Option<StripeSpec>,
    /// Where files are whose file system does not tell (docs/spec/layout-file.md); of this host
    #[arg(long, value_name = "FILE")]
    pub layout_file: Option<PathBuf>,
    /// Fast storage at the source's host: what the destination cannot take yet is kept in a file there, so that the source is
    /// read to its end early
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// Bytes that are kept there at most [default: half of what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub spill_max: Option<u64>,
    /// Seconds to go on trying after the connection was lost, or while every new one is lost at once
    /// [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub reconnect: Option<u64>,
    /// TCP port for data at the end that listens
    #[arg(long, value_name = "PORT", conflicts_with = "port_range")]
    pub port: Option<u16>,
    /// TCP ports for data at the end that listens; the first free one is used
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    pub port_range: Option<(u16, u16)>,
    /// Which end listens for the data connections [default: auto]
    #[arg(long, value_enum)]
    pub listen: Option<Listen>,
    /// How to start ssh, e.g. --ssh 'ssh -F my_config' [default: ssh]
    #[arg(long, value_name = "CMD")]
    pub ssh: Option<String>,
    /// Where haul is on the other host [default: haul]
    #[arg(long, value_name = "PATH")]
    pub haul_path: Option<String>,
    /// Bytes of contents a second that are sent at most, e.g. 100MiB or 2Gbit
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub bandwidth: Option<u64>,
    /// How many files share an object log: one, K, or all; none: nothing is logged, unfinished files begin anew
    /// [default: universal]
    #[arg(long, value_enum, value_name = "MECHANISM", hide_possible_values = true)]
    #[arg(help_heading = "Object log")]
    pub log_mechanism: Option<LogMechanism>,
    /// K: files that share one log of the transaction mechanism [default: 4]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(help_heading = "Object log")]
    pub log_transaction_files: Option<u32>,
    /// How durable objects are written down: char, int, enc, binary, bit8 or bit64 [default: bit64]
    #[arg(long, value_enum, value_name = "METHOD", hide_possible_values = true)]
    #[arg(help_heading = "Object log")]
    pub log_method: Option<LogMethod>,
    /// Which thread writes the log: one of its own, or comm: the one that receives the acknowledgement
    /// [default: thread]
    #[arg(long, value_enum, value_name = "WRITER", hide_possible_values = true)]
    #[arg(help_heading = "Object log")]
    pub log_writer: Option<LogWriter>,
    /// End the transfer (exit 1) when the log cannot be written; without it, it goes on and says so
    #[arg(long, help_heading = "Object log")]
    pub log_required: bool,
}

/// With which calls objects are read and written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineWord {
    /// Measured for each device and direction.
    Auto,
    /// pread and pwrite.
    Posix,
    /// io_uring.
    Uring,
}

/// Whether objects pass through the page cache.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoWord {
    /// Measured for each device and direction.
    Auto,
    /// They do.
    Buffered,
    /// They do not.
    Direct,
}

/// What is done about storage targets that are slow.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// How much is under way on each target follows its latency; a congested one gets one small request at a time
    Adaptive,
    /// Targets over a threshold of service time are skipped a number of times, as in LADS
    Lads,
    /// Targets take turns; congestion is not looked for
    Layout,
    /// Objects go in the order of files, whatever their targets
    None,
}

/// How contents are hashed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashWord {
    /// Cryptographic; the hash of a file is what `b3sum` prints
    Blake3,
    /// 128 bits, several times as fast: finds damage, but keeps nobody from making two contents alike
    Xxh3,
    /// What arrives is not compared with what was read
    None,
}

impl HashWord {
    /// As the ends know it.
    pub fn kind(self) -> HashKind {
        match self {
            HashWord::Blake3 => HashKind::Blake3,
            HashWord::Xxh3 => HashKind::Xxh3,
            HashWord::None => HashKind::None,
        }
    }
}

/// What is done about other transfers on the same host that are at the same storage targets.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Neighbours {
    /// They tell each other, and together have no more under way on a target than one alone would
    Share,
    /// As if there were none; nothing is told to them either
    Ignore,
}

/// Where threads run.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seating {
    /// Where something is gained by it, near their devices; elsewhere as the kernel likes
    Auto,
    /// As the kernel likes
    Off,
}

/// Which end listens.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listen {
    /// The other host; if its port cannot be reached, this one
    Auto,
    /// The other host
    Far,
    /// This host
    Here,
}

/// As in FT-LADS.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogMechanism {
    /// Nothing is logged
    None,
    /// A log for each file
    File,
    /// A log for every K files
    Transaction,
    /// One log for all files
    Universal,
}

/// As in FT-LADS: synchronous or asynchronous logging.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogWriter {
    /// The thread that received the acknowledgement
    Comm,
    /// A thread of the log
    Thread,
}

/// As in FT-LADS.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum LogMethod {
    Char,
    Int,
    Enc,
    Binary,
    Bit8,
    Bit64,
}

/// `haul status`
#[derive(Args, Debug)]
pub struct Status {
    /// Only this transfer (the beginning of its id is enough)
    pub job: Option<String>,
    /// Those too that ended a day or longer ago and need nothing more
    #[arg(long, short)]
    pub all: bool,
    /// One JSON object a line, of all transfers
    #[arg(long)]
    pub json: bool,
}

/// `haul stop`
#[derive(Args, Debug)]
pub struct Stop {
    /// Which transfer (the beginning of its id is enough)
    pub job: String,
    /// Forget it, and remove its unfinished files from a destination on this host
    #[arg(long)]
    pub discard: bool,
}

/// `haul log`
#[derive(Args, Debug)]
pub struct Log {
    /// What to do.
    #[command(subcommand)]
    pub command: LogCommand,
}

/// The subcommands of `haul log`.
#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Show the files in progress and the objects of each that need not be sent again; only reads
    Show(LogShow),
}

/// `haul log show`
#[derive(Args, Debug)]
pub struct LogShow {
    /// The beginning of a transfer's id, a log, or a directory of logs
    #[arg(value_name = "JOB|PATH")]
    pub what: OsString,
    /// One JSON document for each directory, as docs/spec/object_log_reader.py prints it
    #[arg(long)]
    pub json: bool,
}

const LAYOUT_EXIT_CODES: &str = "\
Exit codes:
  0    all paths were looked at
  1    what was found cannot be written
  2    the command or the layout file is not well formed
  3    some paths could not be looked at; each is named";

/// `haul layout`
#[derive(Args, Debug)]
#[command(after_help = LAYOUT_EXIT_CODES)]
pub struct Layout {
    /// Files, and directories for how new files in them are striped
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Also all files in directories
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Where files are whose file system does not tell (docs/spec/layout-file.md)
    #[arg(long, value_name = "FILE")]
    pub layout_file: Option<PathBuf>,
}

const TOPOLOGY_HELP: &str = "\
WHAT is a path of this host, another host (HOST:PATH, or an address), or the name of a disk or network interface. \
Nothing is changed, and nothing is sent.

Where a virtual machine hides on which node a device is, topology.toml says it: --map FILE, else \
~/.config/haul/topology.toml, else /etc/haul/topology.toml.

Exit codes:
  0  shown, or served until it was told to end
  1  the socket cannot be served
  2  the command or topology.toml is not well formed
  4  a host name cannot be resolved";

/// `haul topology`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = TOPOLOGY_HELP)]
pub struct Topology {
    /// What to do instead.
    #[command(subcommand)]
    pub command: Option<TopologyCommand>,
    /// What to show.
    #[command(flatten)]
    pub show: TopologyShow,
}

/// The subcommands of `haul topology`.
#[derive(Subcommand, Debug)]
pub enum TopologyCommand {
    /// Tell several processes where their threads belong, on a Unix socket, so that none gets a core that another has
    Serve(TopologyServe),
    /// Run a command on the CPUs where a transfer of that kind belongs
    Run(TopologyRun),
}

/// `haul topology` without a subcommand
#[derive(Args, Debug)]
pub struct TopologyShow {
    /// Between which ends.
    #[command(flatten)]
    pub ends: TopologyEnds,
    /// Also say whether the transfer could have a cpuset of its own
    #[arg(long)]
    pub zone: bool,
    /// A directory with copies of another machine's /sys and /proc
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// No characters but ASCII [default: as the locale says]
    #[arg(long)]
    pub ascii: bool,
}

const TOPOLOGY_RUN_HELP: &str = "\
Asks this user's service if there is one; where that says nothing that can be carried out here, plans alone, and says so. Where the plan \
is to leave threads to the kernel, the command is run as it is, and that is said. Signals are passed on to it.

Exit codes: those of the command, 128 and the signal's number if one ended it; 2 if this command is not well formed, 127 \
if the other cannot be started";

/// `haul topology run`
#[derive(Args, Debug)]
#[command(after_help = TOPOLOGY_RUN_HELP)]
pub struct TopologyRun {
    /// Between which ends.
    #[command(flatten)]
    pub ends: TopologyEnds,
    /// Give it a cpuset of its own where that is allowed
    #[arg(long)]
    pub zone: bool,
    /// The service [default: haul-topology.sock in the directory for this user's sockets]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What to run
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The transfer that is planned.
#[derive(Args, Debug)]
pub struct TopologyEnds {
    /// Where a transfer reads: its threads here are placed
    #[arg(long, value_name = "WHAT")]
    pub from: Option<OsString>,
    /// Where a transfer writes
    #[arg(long, value_name = "WHAT")]
    pub to: Option<OsString>,
    /// Threads that read or write contents [default: one for each CPU that may be used, from 2 to 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub io_threads: Option<u16>,
    /// Data streams [default: one for each CPU that may be used, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: Option<u16>,
    /// Which device is on which node, where nobody else tells (docs/guide/placement.md)
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
}

/// `haul topology serve`
#[derive(Args, Debug)]
pub struct TopologyServe {
    /// Where [default: haul-topology.sock in the directory for this user's sockets]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Which device is on which node, where nobody else tells (docs/guide/placement.md)
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// A directory with copies of another machine's /sys and /proc
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// `haul serve`
#[derive(Args, Debug)]
pub struct Serve {
    /// Greet over standard input and output
    #[arg(long, required = true)]
    pub stdio: bool,
}

/// `haul generate`
#[derive(Args, Debug)]
pub struct Generate {
    /// What to print
    #[arg(value_enum)]
    pub what: Generated,
    /// For completions: which shell
    #[arg(value_enum, required_if_eq("what", "completions"))]
    pub shell: Option<clap_complete::Shell>,
    /// For man: the directory that gets a page for each command
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

/// What can be generated.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generated {
    /// The manual page
    Man,
    /// Shell completions
    Completions,
}

/// `haul generate`
pub fn generate(arguments: &Generate) -> Result<u8, Error> {
    let command = Options::command();
    let failed = |error: std::io::Error| Error::os(Code::Internal, "generating", &error);
    // Not written at once: the generator of completions panics where it cannot.
    let mut page = Vec::new();
    match (arguments.what, &arguments.to) {
        (Generated::Man, Some(directory)) => {
            let about = directory.display().to_string();
            clap_mangen::generate_to(command, directory).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::new(Code::SinkMissing, about)
                    .hint(format!("make it first: mkdir -p {}", quoted(&directory.to_string_lossy()))),
                _ => Error::os(Code::SystemRefused, about, &error),
            })?;
        }
        (Generated::Man, None) => clap_mangen::Man::new(command).render(&mut page).map_err(failed)?,
        (Generated::Completions, _) => {
            let shell = arguments.shell.unwrap_or(clap_complete::Shell::Bash);
            clap_complete::generate(shell, &mut Options::command(), "haul", &mut page);
            if shell == clap_complete::Shell::Bash {
                page = with_paths(&String::from_utf8_lossy(&page)).into_bytes();
            }
        }
    }
    ended(std::io::stdout().write_all(&page))?;
    Ok(0)
}

/// Bash completions that offer files where a command takes them: options only to whoever has typed a `-`.
fn with_paths(script: &str) -> String {
    const OPTIONS: &str = "COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )";
    let mut takes_paths = false;
    let mut lines: Vec<&str> = Vec::new();
    for line in script.lines() {
        if let Some(command) = line.trim().strip_suffix(')').filter(|label| label.starts_with("haul__")) {
            takes_paths = ["cp", "explain", "layout"]
                .iter()
                .any(|name| command.ends_with(&format!("haul__subcmd__{name}")));
        }
        let is_last = line.trim() == OPTIONS && lines.last().is_some_and(|before| before.trim() == "esac");
        match takes_paths {
            // Where nothing is offered, bash offers files.
            true if is_last => {}
            true if line.contains("if [[ ${cur} == -* ||") => {
                lines.push("            if [[ ${cur} == -* ]] ; then")
            }
            _ => lines.push(line),
        }
    }
    lines.join("\n") + "\n"
}

/// As a size, with an optional `/s`; `10Gbit` is 1.25 x 10^9 bytes. A second's worth of nothing is no rate.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let lower = text.to_ascii_lowercase();
    let rate = match lower.strip_suffix("bit") {
        Some(number) => {
            let unit =
                if number.ends_with(['k', 'm', 'g', 't']) { format!("{number}b") } else { number.into() };
            parse_size(&unit)? / 8
        }
        None => parse_size(text)?,
    };
    if rate == 0 { Err("a rate is at least one byte a second".into()) } else { Ok(rate) }
}

/// `50000-50100`
pub fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "a port range is FIRST-LAST, e.g. 50000-50100".to_owned();
    let (first, last) = text.split_once(['-', ':']).ok_or_else(wrong)?;
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first == 0 || last < first { Err(wrong()) } else { Ok((first, last)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn rates_are_bytes_or_bits_a_second() {
        assert_eq!(parse_rate("100MiB/s"), Ok(100 << 20));
        assert_eq!(parse_rate("5MB"), Ok(5_000_000));
        assert_eq!(parse_rate("10Gbit"), Ok(1_250_000_000));
        assert_eq!(parse_rate("8mbit/s"), Ok(1_000_000));
        assert_eq!(parse_rate("800bit"), Ok(100));
        for wrong in ["0", "", "/s", "bit", "4bit", "-1MB", "1MB/h"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn port_ranges_go_upwards() {
        assert_eq!(parse_ports("50000-50100"), Ok((50000, 50100)));
        for wrong in ["50000", "2-1", "0-5", "a-b", "1-70000"] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }
}
