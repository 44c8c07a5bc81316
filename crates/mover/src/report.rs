//! What an end tells its caller while it runs.

use haul_model::report::{Fact, Stats};

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
    /// Buffers of this end.
    Buffers {
        /// Of all slots.
        bytes: usize,
        /// Of the slots that are kept from being swapped out: all, or as many as this user may lock.
        locked_bytes: usize,
    },
    /// The first payload is on its way.
    FirstObject,
    /// The source's object log cannot be written: from here on the transfer could not be resumed.
    LogLost {
        /// Why.
        cause: String,
    },
}

impl Report {
    /// What it says beside numbers. Progress says nothing.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Report::Fact(Fact::Failed { path, .. } | Fact::Done { path, .. } | Fact::Unlike { path, .. }) => {
                path.len()
            }
            Report::Reconnecting { cause } | Report::LogLost { cause } => cause.len(),
            _ => 0,
        }
    }
}

/// Receives reports, in their order and on a thread of their own. Where it blocks, nothing new is taken on before long, and the end
/// does not return before the last one was received; nothing else waits for it.
pub type Reports = Box<dyn FnMut(Report) + Send>;
