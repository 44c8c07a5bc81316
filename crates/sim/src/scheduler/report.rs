//! What a history of the scheduler, or many, came to.

macro_rules! counts {
    ($($variant:ident $text:literal;)*) => {
        /// What is counted, to see that the histories reach it.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)]
        pub enum Count { $($variant,)* }

        impl Count {
            /// All of them.
            pub const ALL: &'static [Count] = &[$(Count::$variant),*];
            /// For the reader.
            pub const fn text(self) -> &'static str { match self { $(Count::$variant => $text,)* } }
        }
    };
}

counts! {
    FileOrder  "histories in file order";
    Layout     "histories by layout";
    Lads       "histories with lads";
    Adaptive   "histories with adaptive";
    Picked     "requests picked";
    Normal     "of them of a healthy target";
    Gentle     "of them of a target that is held back";
    Aged       "picks while another target had been held back for too long";
    Idle       "times that a thread found nothing to do";
    NoSlot     "times that it found no slot";
    WrittenOff "requests written off";
    Late       "of them that came back";
    Cancelled  "requests cancelled once they were picked";
    Dead       "events with a dead target";
    Exhausted  "events without a thread left";
    HandedBack "requests handed back";
    Excused    "events with a target that has lost more requests than files, and lives";
    GateFailed "gates that failed";
    Heard      "targets whose neighbours were heard";
    Advised    "of them taken for congested on their word";
}

/// Of one history, or summed over many.
#[derive(Clone, Default)]
pub struct SchedulerReport {
    /// Histories.
    pub histories: u64,
    /// Things that happened.
    pub events: u64,
    counts: [u64; Count::ALL.len()],
    /// What did not hold.
    pub violation: Option<String>,
}

impl SchedulerReport {
    pub(super) fn count(&mut self, what: Count) {
        self.counts[what as usize] += 1;
    }

    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize]
    }

    /// All counts.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Count::ALL.iter().map(|what| (what.text(), self.counted(*what)))
    }
}

impl crate::many::Tally for SchedulerReport {
    fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.events += other.events;
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, other)| *sum += other);
    }

    fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }
}
