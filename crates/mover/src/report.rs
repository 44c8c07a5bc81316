//! What an end tells its caller while it runs.

use haul_model::report::{Fact, Stats};

/// Where the work was found waiting; the most frequent one is the bottleneck of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bottleneck {
    /// The scan of the source has not found enough yet.
    Scan,
    /// Reading (and hashing) at the source.
    SourceRead,
    /// Sending, or the other end's receiving.
    Network,
    /// Checking and writing at the sink.
    SinkWrite,
    /// Making durable at the sink.
    SinkSync,
    /// The answers of the sink's file system about names.
    SinkMetadata,
}

impl Bottleneck {
    /// All, in the order of the walk of an object.
    pub const ALL: [Bottleneck; 6] = [
        Bottleneck::Scan,
        Bottleneck::SourceRead,
        Bottleneck::Network,
        Bottleneck::SinkWrite,
        Bottleneck::SinkSync,
        Bottleneck::SinkMetadata,
    ];

    /// Stable, for scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::Scan => "scan",
            Bottleneck::SourceRead => "source-read",
            Bottleneck::Network => "network",
            Bottleneck::SinkWrite => "sink-write",
            Bottleneck::SinkSync => "sink-sync",
            Bottleneck::SinkMetadata => "sink-metadata",
        }
    }
}

/// One report.
#[derive(Clone, Debug)]
pub enum Report {
    /// About one entry.
    Fact(Fact),
    /// Counters, several times a second.
    Progress {
        /// So far.
        stats: Stats,
        /// The scan has ended: the totals will not grow.
        totals_are_final: bool,
    },
    /// The connection was lost; it is being made again.
    Reconnecting {
        /// Why it was lost.
        cause: String,
    },
    /// A connection stands (again).
    Connected {
        /// Data streams.
        streams: usize,
        /// TLS cipher suite of the data streams; none in clear and in one process.
        cipher: Option<&'static str>,
    },
    /// So many other transfers of this host are at so many of this end's targets.
    Neighbours {
        /// Others.
        transfers: usize,
        /// Shared targets.
        targets: usize,
    },
    /// The first payload is on its way.
    FirstObject,
    /// The source's object log cannot be written: from here on the transfer could not be resumed.
    LogLost {
        /// Why.
        cause: String,
    },
}

/// Receives reports, on the master's thread: must not block.
pub type Reports = Box<dyn FnMut(Report) + Send>;
