//! The states of an entry at each end, as tables: every row is (state before, cause, state after).
//!
//! The machines change the state of an entry only through [`source_step`] and [`sink_step`]. A cause that has no row in
//! the state at hand is refused: from the other end it is a protocol violation, from inside a bug. The simulator counts
//! the rows that its histories reach, and every row must be reached.

use haul_model::{Code, Failure};

macro_rules! table {
    ($(#[$doc:meta])* $table:ident, $step:ident, $state:ident { $($(#[$state_doc:meta])* $states:ident),* },
     $cause:ident { $($(#[$cause_doc:meta])* $causes:ident),* }, [$(($from:ident, $why:ident, $to:ident),)*]) => {
        /// States.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $state { $($(#[$state_doc])* $states),* }

        /// Causes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $cause { $($(#[$cause_doc])* $causes),* }

        $(#[$doc])*
        pub const $table: &[($state, $cause, $state)] = &[$(($state::$from, $cause::$why, $state::$to)),*];

        /// The state after `cause`, and which row of the table that is.
        pub fn $step(from: $state, cause: $cause) -> Result<($state, usize), Failure> {
            $table
                .iter()
                .position(|(before, why, _)| *before == from && *why == cause)
                .map(|row| ($table[row].2, row))
                .ok_or(Failure::new(Code::Protocol))
        }
    };
}

table! {
    /// The life of an entry at the source. An entry that ends is no longer kept.
    SOURCE_TABLE, source_step,
    SourceState {
        /// NEW_FILE is sent or about to be.
        Announced,
        /// The symlink is made; its name is not durable yet.
        Made,
        /// A small file waits for a bundle.
        Queued,
        /// It is being read into a bundle, or is on its way in one.
        Bundled,
        /// Its objects are being read, sent, made durable.
        Active,
        /// All objects are durable; did it change meanwhile?
        Confirming,
        /// FILE_CLOSE is sent.
        Closing,
        /// It changed while it was read; what is it now?
        Restating,
        /// Not kept any more.
        Ended
    },
    SourceCause {
        /// FILE_ID: complete already.
        Skipped,
        /// FILE_ID: the directory is there.
        DirectoryMade,
        /// FILE_ID: the symlink is made.
        LinkMade,
        /// FILE_ID: send it in a bundle.
        StartedSmall,
        /// FILE_ID: send all its objects.
        Started,
        /// FILE_ID: send the objects that the log lacks.
        Resumed,
        /// FILE_ID or BLOCK_SYNC: the sink cannot have it.
        Refused,
        /// A bundle takes it.
        Packed,
        /// REPAIR asks for the member again.
        RepairAsked,
        /// REPAIR asked once too often.
        GivenUp,
        /// It cannot be read.
        ReadFailed,
        /// It is not the version that was announced.
        Changed,
        /// Its last object became durable.
        AllDurable,
        /// It has not changed.
        Confirmed,
        /// BLOCK_SYNC: complete and durable.
        Done,
        /// It is announced anew, as another entry.
        Restated
    },
    [
        (Announced, Skipped, Ended),
        (Announced, DirectoryMade, Ended),
        (Announced, LinkMade, Made),
        (Announced, StartedSmall, Queued),
        (Announced, Started, Active),
        (Announced, Resumed, Active),
        (Announced, Refused, Ended),
        (Made, Done, Ended),
        (Made, Refused, Ended),
        (Queued, Packed, Bundled),
        (Bundled, Done, Ended),
        (Bundled, Refused, Ended),
        (Bundled, RepairAsked, Queued),
        (Bundled, GivenUp, Ended),
        (Bundled, ReadFailed, Ended),
        (Bundled, Changed, Restating),
        (Active, AllDurable, Confirming),
        (Active, ReadFailed, Ended),
        (Active, Changed, Restating),
        (Active, Refused, Ended),
        (Active, GivenUp, Ended),
        (Confirming, Confirmed, Closing),
        (Confirming, Changed, Restating),
        (Confirming, ReadFailed, Ended),
        (Closing, Done, Ended),
        (Closing, Refused, Ended),
        (Restating, Refused, Restating),
        (Restating, Restated, Ended),
        (Restating, ReadFailed, Ended),
    ]
}

table! {
    /// The life of an entry at the sink. An entry that ends is no longer kept.
    SINK_TABLE, sink_step,
    SinkState {
        /// Storage looks and makes.
        Preparing,
        /// A bundle must bring it.
        Expecting,
        /// A bundle with it is announced or being written.
        Writing,
        /// Its objects arrive.
        Open,
        /// Hashes are combined, attributes set.
        Sealing,
        /// It waits for its group: sync, final name, sync of the name.
        Committing,
        /// The sink cannot have it, and has said so; its writes come to an end and its unfinished file is removed.
        Refusing,
        /// That has happened; the source, which may be about to start it again, has not dropped it yet.
        Refused,
        /// The source has dropped it; its writes come to an end and its unfinished file is removed.
        Dropping,
        /// Not kept any more.
        Ended
    },
    SinkCause {
        /// Complete already, or a directory that is there.
        Present,
        /// It cannot be had.
        Refused,
        /// The symlink is made.
        LinkMade,
        /// A member of a bundle.
        StartedSmall,
        /// A file with objects: from the beginning.
        Started,
        /// A file with objects: from its log.
        Resumed,
        /// MANIFEST names it.
        Manifested,
        /// It is written.
        Written,
        /// Its bytes were wrong or lost: it is asked for again.
        AskedAgain,
        /// Writing failed.
        WriteFailed,
        /// FILE_CLOSE.
        Closed,
        /// Attributes are set.
        Sealed,
        /// They may be lost, as their sync failed: they are set once more.
        Unsealed,
        /// Complete and durable.
        Durable,
        /// Its group could not be made durable, or it could not be sealed or published.
        CommitFailed,
        /// FILE_DROP.
        Dropped,
        /// FILE_DROP of what was to stay, from a source that has begun anew or given it up with its log.
        Unkept,
        /// Its unfinished file is gone.
        Discarded
    },
    [
        (Preparing, Present, Ended),
        (Preparing, Refused, Ended),
        (Preparing, LinkMade, Committing),
        (Preparing, StartedSmall, Expecting),
        (Preparing, Started, Open),
        (Preparing, Resumed, Open),
        (Expecting, Manifested, Writing),
        (Expecting, Dropped, Ended),
        (Writing, Written, Committing),
        (Writing, AskedAgain, Expecting),
        (Writing, WriteFailed, Refusing),
        (Open, Closed, Sealing),
        (Open, Dropped, Dropping),
        (Open, WriteFailed, Refusing),
        (Sealing, Sealed, Committing),
        (Sealing, CommitFailed, Refusing),
        (Committing, Durable, Ended),
        (Committing, AskedAgain, Expecting),
        (Committing, Unsealed, Sealing),
        (Committing, CommitFailed, Refusing),
        (Refusing, Dropped, Dropping),
        (Refusing, Discarded, Refused),
        (Refused, Dropped, Ended),
        (Refused, Unkept, Dropping),
        (Dropping, Discarded, Ended),
    ]
}

/// How often each row was taken.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Rows of [`SOURCE_TABLE`].
    pub source: [u64; SOURCE_TABLE.len()],
    /// Rows of [`SINK_TABLE`].
    pub sink: [u64; SINK_TABLE.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage { source: [0; SOURCE_TABLE.len()], sink: [0; SINK_TABLE.len()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_and_cause_has_one_outcome() {
        for (row, (from, cause, _)) in SOURCE_TABLE.iter().enumerate() {
            assert_eq!(source_step(*from, *cause).unwrap().1, row);
        }
        for (row, (from, cause, _)) in SINK_TABLE.iter().enumerate() {
            assert_eq!(sink_step(*from, *cause).unwrap().1, row);
        }
        assert!(source_step(SourceState::Announced, SourceCause::Done).is_err());
        assert!(sink_step(SinkState::Expecting, SinkCause::Closed).is_err());
    }
}
