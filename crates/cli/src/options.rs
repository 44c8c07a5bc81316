//! The command line: each flag is declared here, once. Help, man page and completions are generated from it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use haul_model::HashKind;
pub use haul_model::size::parse as parse_size;
use haul_mover::Error;
use haul_storage::layout::stripe::StripeSpec;

use crate::congestion::{SKIPS_MAX, Time};

/// Moves datasets between file systems and hosts, and never loses its place.
#[derive(Parser, Debug)]
#[command(name = "haul", version, arg_required_else_help = true, max_term_width = 100)]
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
    /// List transfers that can be continued
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
  1    the transfer failed (no space, state directory not writable, policy, ...)
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
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DEST")]
    pub paths: Vec<OsString>,
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Also keep owner and group (needs root at the destination); modes and times are always kept
    #[arg(short, long)]
    pub preserve: bool,
    /// Name each file as it is done
    #[arg(short, long)]
    pub verbose: bool,
    /// At the end, show where the time of both ends went (-v does, too)
    #[arg(long)]
    pub profile: bool,
    /// No progress line
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
    /// Data streams [default: measured for the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: Option<u16>,
    /// Buffer memory of each end at most, e.g. 256MiB; it takes what the path needs
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Bytes of an object, a power of two from 64KiB to 64MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub object_size: Option<u64>,
    /// Files up to this size travel in bundles; 0: only empty ones
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bundle_below: Option<u64>,
    /// Threads of each end that read or write contents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub io_threads: Option<u16>,
    /// What is done about storage targets that are slow: adaptive, lads, layout or none
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
    /// times what is usual there]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub hang_after: Option<u64>,
    /// Whether storage targets are shared with other transfers on the same host: share or ignore [default: share]
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub neighbours: Option<Neighbours>,
    /// Stripes of new files on Lustre: COUNT[:SIZE[:POOL]], e.g. 8:4MiB; -1 is all targets [default: one for each GiB]
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
    /// Seconds to go on trying after the connection was lost
    #[arg(long, value_name = "SECONDS")]
    pub reconnect: Option<u64>,
    /// TCP port for data at the end that listens
    #[arg(long, value_name = "PORT", conflicts_with = "port_range")]
    pub port: Option<u16>,
    /// TCP ports for data at the end that listens; the first free one is used
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_ports)]
    pub port_range: Option<(u16, u16)>,
    /// Which end listens for the data connections
    #[arg(long, value_enum)]
    pub listen: Option<Listen>,
    /// How to start ssh, e.g. --ssh 'ssh -F my_config'
    #[arg(long, value_name = "CMD")]
    pub ssh: Option<String>,
    /// Where haul is on the other host
    #[arg(long, value_name = "PATH")]
    pub haul_path: Option<String>,
    /// Bytes a second that are sent at most, e.g. 100MiB or 2Gbit
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub bandwidth: Option<u64>,
    /// How many files share an object log: one, K, or all; none: nothing is logged, nothing can be resumed
    #[arg(long, value_enum, value_name = "MECHANISM", hide_possible_values = true)]
    #[arg(help_heading = "Object log")]
    pub log_mechanism: Option<LogMechanism>,
    /// K: files that share one log of the transaction mechanism
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(help_heading = "Object log")]
    pub log_transaction_files: Option<u32>,
    /// How durable objects are written down: char, int, enc, binary, bit8 or bit64
    #[arg(long, value_enum, value_name = "METHOD", hide_possible_values = true)]
    #[arg(help_heading = "Object log")]
    pub log_method: Option<LogMethod>,
    /// Which thread writes the log: one of its own, or comm: the one that receives the acknowledgement
    #[arg(long, value_enum, value_name = "WRITER", hide_possible_values = true)]
    #[arg(help_heading = "Object log")]
    pub log_writer: Option<LogWriter>,
    /// End the transfer (exit 1) when the log cannot be written; without it, it goes on and says so
    #[arg(long, help_heading = "Object log")]
    pub log_required: bool,
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
    /// One JSON object a line
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

/// `haul bench`
#[derive(Args, Debug)]
pub struct Bench {
    /// What to measure
    #[command(subcommand)]
    pub what: BenchCommand,
}

/// The subcommands of `haul bench`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// What the object logs cost, and what a fault costs: the evaluation of FT-LADS with haul
    Faults(BenchFaults),
    /// What it is worth to know which storage targets are slow: the evaluation of LADS with haul (as root)
    Congestion(BenchCongestion),
    /// haul side by side with its peers (rsync, scp, GridFTP, XRootD, rclone, bbcp, ...) and with this machine's own limits
    Peers(BenchPeers),
    /// Both ends of the raw pair; started by the benches
    #[command(hide = true)]
    Raw(BenchRaw),
    /// The receiving end of the raw pair; started by the sending one
    #[command(hide = true)]
    RawReceive(BenchRawReceive),
    /// One measured transfer; started by the benches
    #[command(hide = true)]
    Transfer(BenchTransfer),
    /// Stands in for ssh; started by the benches
    #[command(hide = true)]
    Shell(BenchShell),
}

/// `haul bench faults`
#[derive(Args, Debug)]
#[command(after_help = FAULTS_HELP)]
pub struct BenchFaults {
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "haul-faults")]
    pub report: PathBuf,
    /// Where the runs keep what they need while they run [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Of the paper's workloads, for overhead and room: a share from 0.0001 to 1, or `paper`
    #[arg(long, value_name = "SHARE", value_parser = parse_scale, default_value = "0.02")]
    pub scale: f64,
    /// The same for the runs with faults, which are paced
    #[arg(long, value_name = "SHARE", value_parser = parse_scale, default_value = "0.003")]
    pub recovery_scale: f64,
    /// Which workloads
    #[arg(long, value_enum, value_delimiter = ',', default_value = "big,small")]
    pub workload: Vec<BenchWorkload>,
    /// Which parts: overhead (figures 5 to 7), space (figure 7 alone), recovery (figures 8 to 10)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "overhead,recovery")]
    pub part: Vec<BenchPart>,
    /// Only these logs, e.g. universal+bit64,file+char [default: all eighteen]
    #[arg(long, value_name = "LOG", value_delimiter = ',')]
    pub log: Vec<String>,
    /// Runs of each kind, at least
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub runs: u32,
    /// Rounds for the overhead, at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub rounds_max: u32,
    /// Half the width that the intervals of the overhead are to have, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub precision: f64,
    /// How long an undisturbed run with faults beside it takes: these are paced
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub seconds: f64,
    /// Paced runs at a time [default: 24 for each core]; of the small workload half as many
    #[arg(long, value_name = "N")]
    pub parallel: Option<u16>,
    /// Faults at which percent of the bytes
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "20,40,60,80")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=95))]
    pub point: Vec<u32>,
    /// Which faults: SIGKILL to the source, SIGKILL to the sink, a cut of all connections
    #[arg(long, value_enum, value_delimiter = ',', default_value = "source,sink,network")]
    pub fault: Vec<BenchFault>,
    /// Every log against every kind of fault at every point (else each against faults of the source, and the mechanisms
    /// with bit64 against all)
    #[arg(long)]
    pub every_fault: bool,
    /// Which thread writes the logs
    #[arg(long, value_enum, value_name = "WRITER")]
    pub log_writer: Option<LogWriter>,
    /// Of the order of the runs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

const FAULTS_HELP: &str = "\
Runs haul with each of the eighteen object logs and without one, undisturbed and hit by SIGKILL at \
the source, SIGKILL at the sink and a cut of all connections, and writes ft-lads.md with CSV files and pictures. \
Source files are computed and contents are checked but not kept, so it needs no disk space at any scale. rsync and \
bbcp run beside it if they are installed. Nothing but this host is involved: the far end is started without ssh.

All of it takes some hours on a laptop; what is done is written at once, and a part that is run again replaces its own \
files only. A quick look: --log universal+bit64,file+char --runs 3 --rounds-max 3 --seconds 10";

/// Workloads of the paper.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchWorkload {
    /// 100 files of 1 GB
    Big,
    /// 10,000 files of 1 MB
    Small,
}

/// What hits a transfer.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchFault {
    /// SIGKILL to the process that reads
    Source,
    /// SIGKILL to the process that writes
    Sink,
    /// A cut of all connections
    Network,
}

/// Parts of the evaluation.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchPart {
    /// Time, processor time, memory and room without faults
    Overhead,
    /// Room alone, from one run of each
    Space,
    /// What faults cost
    Recovery,
    /// Nothing is run: the report is written anew from its CSV files
    Report,
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = if text == "paper" { Ok(1.0) } else { text.parse::<f64>() };
    scale
        .ok()
        .filter(|scale| (0.0001..=1.0).contains(scale))
        .ok_or_else(|| "a share from 0.0001 to 1, or paper".into())
}

/// `haul bench congestion`
#[derive(Args, Debug)]
#[command(after_help = CONGESTION_HELP)]
pub struct BenchCongestion {
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "haul-congestion")]
    pub report: PathBuf,
    /// Where the laboratory is mounted while it is there; it is in memory [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Which parallel file system is slow
    #[arg(long, value_enum, value_name = "SYSTEM", default_value = "stripefs")]
    pub file_system: BenchFileSystem,
    /// The emulated parallel file system [default: stripefs beside this program]
    #[arg(long, value_name = "PROGRAM")]
    pub stripefs: Option<PathBuf>,
    /// What serves GlusterFS and CephFS [default: testbed beside this program]
    #[arg(long, value_name = "PROGRAM")]
    pub testbed: Option<PathBuf>,
    /// Of the paper's bytes (5.9 GB a run; needs that much memory at each end): a share from 0.0001 to 1, or `paper`
    #[arg(long, value_name = "SHARE", value_parser = parse_scale, default_value = "0.25")]
    pub scale: f64,
    /// Bytes a second of all targets of an end together [default: 400MB; gluster: 60MB, ceph: 40MB, what two cores serve with room to spare]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// What slows targets: the kernel's I/O throttle on devices of their own, or the emulated file system
    #[arg(long, value_enum, value_name = "THROTTLE", default_value = "kernel")]
    pub throttle: BenchThrottle,
    /// I/O threads of each end, whatever the policy
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Which parts: devices (how fast targets are), transfers, neighbour (what others on the same target have to wait) [default:
    /// all; gluster, ceph: transfers]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub part: Vec<BenchCongestionPart>,
    /// Whose targets are slow [default: source,sink,both; gluster, ceph: source,sink]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub end: Vec<BenchEnd>,
    /// How many of the 11 targets are slow
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,1,2,4")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=11))]
    pub slow: Vec<u8>,
    /// Slow targets stay, or others are slow every few seconds
    #[arg(long, value_enum, value_delimiter = ',', default_value = "constant,moving")]
    pub motion: Vec<BenchMotion>,
    /// How often slow targets move
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub step: f64,
    /// Who moves the files: file-order, layout, lads, adaptive (all haul), cp, rsync, bbcp; what is not installed is left out
    #[arg(
        long,
        value_name = "MOVER",
        value_delimiter = ',',
        default_value = "file-order,layout,lads,adaptive,cp,rsync,bbcp"
    )]
    pub mover: Vec<String>,
    /// Runs of each kind
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// How long a neighbour is watched [default: as long as most of the files take]
    #[arg(long, value_name = "SECONDS")]
    pub probe_seconds: Option<f64>,
    /// Of the order of the runs, and of which targets are slow
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

const CONGESTION_HELP: &str = "\
Makes two parallel file systems of 11 targets each on loop devices in memory, in a mount namespace of its own, slows \
some targets to a tenth, and moves files with each of haul's policies and with cp, rsync and bbcp; writes lads.md with CSV \
files and pictures. Needs root, FUSE, mkfs.xfs and the kernel's I/O throttle (control groups, first version).

With --file-system gluster one end is a GlusterFS volume of 11 bricks on such devices, served and mounted by the testbed in a \
network of its own (packages: lab/deps.sh gluster), and the report is lads-gluster.md: transfers from it or to it, without the \
parts that need files on chosen targets. With --file-system ceph it is the same on a CephFS of 11 OSDs (lab/deps.sh ceph; lads-ceph.md).

What is done is written at once, and a part that is run again replaces its own file only; of transfers with the same \
settings its own kinds only. `--part report` writes the page anew. A quick look: --end source,sink --slow 0,1 --motion moving --mover file-order,layout,lads,adaptive --runs 1";

/// Which parallel file system.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchFileSystem {
    /// The emulated one: striped files, every request is seen
    Stripefs,
    /// A GlusterFS volume: each file on one brick
    Gluster,
    /// A CephFS: objects of files on OSDs
    Ceph,
}

/// Whose targets are slow.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchEnd {
    /// Files are read from slow targets
    Source,
    /// Files are written to slow targets
    Sink,
    /// Both
    Both,
}

/// Whether slow targets stay the same.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchMotion {
    /// The same ones all the time
    Constant,
    /// Others every few seconds
    Moving,
}

/// What slows targets.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchThrottle {
    /// The kernel
    Kernel,
    /// The emulated file system
    Emulated,
}

/// Parts of the evaluation.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchCongestionPart {
    /// How fast targets are
    Devices,
    /// Transfers
    Transfers,
    /// What others have to wait
    Neighbour,
    /// Nothing is run: the report is written anew from its CSV files
    Report,
}

/// `haul bench peers`
#[derive(Args, Debug)]
#[command(after_help = PEERS_HELP)]
pub struct BenchPeers {
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "haul-peers")]
    pub report: PathBuf,
    /// Where memory file systems are mounted while it runs [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A directory on a disk, for big-disk and tree-disk; without it they are left out
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Which cases
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "big,thirty,files,tree,big-disk,tree-disk,cost"
    )]
    pub case: Vec<BenchCase>,
    /// Only these, e.g. haul,haul-plain,rsyncd,cp [default: all that are installed]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub peer: Vec<String>,
    /// Runs of each that count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Of the full sizes: a share from 0.0001 to 1
    #[arg(long, value_name = "SHARE", value_parser = parse_scale, default_value = "1")]
    pub scale: f64,
    /// What is done
    #[arg(long, value_enum, default_value = "run")]
    pub part: BenchPeersPart,
    /// Of the order of the runs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

const PEERS_HELP: &str = "\
Copies the same data with haul, with other movers over loopback, with cp and tar, and with a pair of programs that only read, \
send, receive and write; runs are interleaved, each result is checked. Writes peers.md with CSV files and pictures. Peers are \
taken from the PATH (`lab/deps.sh bench` installs those that Debian has); one that is missing or fails is a row with the reason.

As root it mounts memory file systems in a mount namespace of its own, and servers listen in a network of their own. In \
memory it needs 10 GiB at full size. What is done is written at once, and a case that is run again replaces its own figures \
only; `--part report` writes the page anew. A quick look: --scale 0.02 --runs 2";

/// What is moved.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchCase {
    /// One file of 4 GiB, in memory
    Big,
    /// 30 files of 128 MiB, in memory
    Thirty,
    /// 2,000 files of 1 MiB, in memory
    Files,
    /// A Linux source tree, in memory
    Tree,
    /// One file of 4 GiB, on a disk
    BigDisk,
    /// A Linux source tree, on a disk
    TreeDisk,
    /// What haul alone costs from 1 to 64 GB, and from ten thousand to a million files
    Cost,
}

/// Parts of the comparison.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BenchPeersPart {
    /// Everything is run and the report written
    Run,
    /// Nothing is run: the report is written anew from its CSV files
    Report,
}

/// `haul bench raw`
#[derive(Args, Debug)]
pub struct BenchRaw {
    /// What is read
    pub source: PathBuf,
    /// What is written
    pub dest: PathBuf,
}

/// `haul bench raw-receive`
#[derive(Args, Debug)]
pub struct BenchRawReceive {
    /// What is written
    pub dest: PathBuf,
    /// How much comes
    pub bytes: u64,
}

/// `haul bench transfer`
#[derive(Args, Debug)]
pub struct BenchTransfer {
    /// As `haul cp`
    #[command(flatten)]
    pub copy: Copy,
    /// Files that are computed: files=N,size=BYTES,seed=N
    #[arg(long, value_name = "SPEC")]
    pub synthetic: Option<String>,
    /// Check contents at the sink and keep none
    #[arg(long)]
    pub discard: bool,
}

/// `haul bench shell`
#[derive(Args, Debug)]
pub struct BenchShell {
    /// As for ssh: [-T | -G] [--] HOST COMMAND...
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub words: Vec<OsString>,
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
Asks the service of this host if there is one, else plans alone. Where the plan is to leave threads to the kernel, the command is run \
as it is, and that is said. SIGTERM and SIGHUP are passed on to it.

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
    /// Threads that read or write contents [default: as haul cp]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub io_threads: Option<u16>,
    /// Data streams [default: as haul cp]
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
    let failed = |error: std::io::Error| Error::os(haul_model::Code::Internal, "generating", &error);
    match (arguments.what, &arguments.to) {
        (Generated::Man, Some(directory)) => {
            clap_mangen::generate_to(command, directory).map_err(failed)?;
        }
        (Generated::Man, None) => {
            clap_mangen::Man::new(command).render(&mut std::io::stdout()).map_err(failed)?;
        }
        (Generated::Completions, _) => {
            let shell = arguments.shell.unwrap_or(clap_complete::Shell::Bash);
            clap_complete::generate(shell, &mut Options::command(), "haul", &mut std::io::stdout());
        }
    }
    Ok(0)
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
