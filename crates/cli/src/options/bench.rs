//! The command line of `haul bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Copy, LogWriter, parse_rate};

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
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds_max: u32,
    /// Half the width that the intervals of the overhead are to have, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub precision: f64,
    /// How long an undisturbed run with faults beside it takes: these are paced
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "60")]
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

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds)).ok_or_else(|| "0.1 to 86400 seconds".into())
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
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "3")]
    pub step: f64,
    /// Who moves the files: file-order, layout, lads, adaptive (all haul), cp, rsync, bbcp, gridftp; what is not installed is left out, and named
    #[arg(
        long,
        value_name = "MOVER",
        value_delimiter = ',',
        default_value = "file-order,layout,lads,adaptive,cp,rsync,bbcp,gridftp"
    )]
    pub mover: Vec<String>,
    /// Runs of each kind
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// How long a neighbour is watched [default: as long as most of the files take]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub probe_seconds: Option<f64>,
    /// Of the order of the runs, and of which targets are slow
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

const CONGESTION_HELP: &str = "\
Makes two parallel file systems of 11 targets each on loop devices in memory, in a mount namespace of its own, slows \
some targets to a tenth, and moves files with each of haul's policies and with cp, rsync, bbcp and GridFTP; writes lads.md with CSV \
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
send, receive and write; runs are interleaved, each result is compared with the source. Writes peers.md with CSV files and pictures. Peers are \
taken from the PATH (`lab/deps.sh bench` installs those that Debian has); one that is missing or fails is a row with the reason.

As root it mounts memory file systems in a mount namespace of its own; otherwise all cases are on whatever holds --dir. Servers \
that let everybody in listen in a network of their own; where the system allows none (containers), their peers are rows with the reason. In \
memory it needs 10 GiB at full size, and on a virtual machine it writes to as much free memory as a run needs before each, \
so that none pays for what the host had taken back. On a disk results of tree-disk stay, emptied, until the case ends, as long as there \
are inodes for more. What is done is written at once, and a case that is run again replaces its own figures \
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
