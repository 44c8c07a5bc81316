//! Where the time of one end went: what its threads were busy with, and what its master waited for.
//!
//! Each end keeps one and tells it to the other before the session ends, so that both can name what held the transfer up.

macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them. A place in it is the number on the wire, so the list only grows at its end.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = $name::ALL.len();

            /// Stable, for scripts.
            pub const fn name(self) -> &'static str { match self { $($name::$variant => $word,)* } }
        }
    };
}

words! {
    /// What a thread of an end is at. An end does only some of it; hashing and ciphering are done at both.
    Stage {
        /// Source: listing directories, asking for attributes.
        Scan "scan",
        /// Source: opening files and reading them, to see that they did not change.
        Read "read",
        /// Hashing what was read, or what has arrived.
        Hash "hash",
        /// Source: writing to the spill, and reading back.
        Spill "spill",
        /// Enciphering what is sent, or deciphering what was received.
        Cipher "cipher",
        /// Source: keeping to the rate that the user set.
        Limit "limit",
        /// Source: handing bytes to the system, and waiting until it takes them.
        Send "send",
        /// Source: writing the object log, and making it durable.
        Log "log",
        /// Sink: the bytes of a payload whose beginning is there.
        Receive "receive",
        /// Sink: writing contents.
        Write "write",
        /// Sink: making files and setting their attributes; where nothing becomes more durable than it is, naming small ones.
        Create "create",
        /// Sink: looking names up, directories, symlinks, final names.
        Names "names",
        /// Sink: making durable.
        Sync "sync",
        /// Source: reading what is sent at once.
        ReadOnWay "read-on-way",
        /// Source: hashing what is sent at once.
        HashOnWay "hash-on-way",
        /// Sink: the kernel's copy from file to file of what was not in memory. It reads and writes at once.
        Copy "copy",
    }
}

words! {
    /// What a master waits for: at any time one thing at most.
    Waiting {
        /// Source: more entries from the scan.
        Scan "scan",
        /// Source: answers of the sink about names.
        Answers "answers",
        /// Source: storage, to read.
        Read "read",
        /// Source: the transport, to send.
        Send "send",
        /// Source: the sink, to grant slots.
        Credit "credit",
        /// Either: for what was sent to be durable under its name.
        Settle "settle",
        /// Source: a new connection, in place of one that was lost.
        Link "link",
        /// Sink: payloads, while none arrives.
        Payload "payload",
        /// Sink: storage, to write.
        Write "write",
        /// Sink: a group to become durable, before more may come.
        Sync "sync",
        /// Sink: storage, to look up and make names.
        Names "names",
        /// Sink: the rest of payloads that have begun to arrive.
        Arriving "arriving",
        /// Sink: further payloads, while none arrives and storage writes a few.
        Next "next",
        /// Source: the next word of the sink, from a thread that writes the log before it listens.
        Log "log",
    }
}

impl Stage {
    /// What this is called where a thread that sends does it, in the midst of that: whoever waits for the one waits for the
    /// other.
    pub const fn within(self, outer: Stage) -> Stage {
        match (outer, self) {
            (Stage::Send | Stage::Cipher, Stage::Read) => Stage::ReadOnWay,
            (Stage::Send | Stage::Cipher, Stage::Hash) => Stage::HashOnWay,
            _ => self,
        }
    }
}

/// What all threads of an end together have spent on a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// Time in it, whether a processor worked or the thread waited for the system.
    pub busy_nanos: u64,
    /// Of that, time of a processor.
    pub processor_nanos: u64,
    /// How often.
    pub times: u64,
    /// Contents that went through it.
    pub bytes: u64,
}

impl Spent {
    /// Both together.
    pub fn and(self, other: Spent) -> Spent {
        Spent {
            busy_nanos: self.busy_nanos.saturating_add(other.busy_nanos),
            processor_nanos: self.processor_nanos.saturating_add(other.processor_nanos),
            times: self.times.saturating_add(other.times),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// What an end buffers in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buffers {
    /// Slots that were in use at a time, at most.
    pub slots_used: u32,
    /// That there are.
    pub slots: u32,
    /// Of each.
    pub slot_bytes: u32,
}

/// Of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// From the session's first connection to when this was taken.
    pub wall_nanos: u64,
    /// Of this process, since it began.
    pub processor_nanos: u64,
    /// That this process may use.
    pub processors: u32,
    /// How busy all processors of the host were meanwhile, whoever used them; 1000 at most.
    pub host_busy_permille: u16,
    /// What its threads have spent on each stage, by its number.
    pub stages: [Spent; Stage::COUNT],
    /// How long its master waited for each thing, by its number.
    pub waited_nanos: [u64; Waiting::COUNT],
    /// Its slots.
    pub buffers: Buffers,
    /// How long the network was when the last connection was made, if that is known.
    pub round_trip_nanos: Option<u64>,
}

impl Profile {
    /// What its threads have spent on this.
    pub fn spent(&self, stage: Stage) -> Spent {
        self.stages[stage as usize]
    }

    /// The same, to be set.
    pub fn spent_mut(&mut self, stage: Stage) -> &mut Spent {
        &mut self.stages[stage as usize]
    }

    /// How long its master waited for this.
    pub fn waited_nanos(&self, waiting: Waiting) -> u64 {
        self.waited_nanos[waiting as usize]
    }

    /// The same, to be set.
    pub fn waited_nanos_mut(&mut self, waiting: Waiting) -> &mut u64 {
        &mut self.waited_nanos[waiting as usize]
    }
}
