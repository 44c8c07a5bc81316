//! Bugs that can be planted: each breaks one clause of the order rule, of credits or of the link, or one rule of the
//! scheduler or of neighbours.
//!
//! With the feature `planted-bugs` off (always, outside the simulator's own tests) [`Planted::has`] is constantly
//! false and the compiler removes every trace.

#[cfg(not(feature = "planted-bugs"))]
use core::marker::PhantomData;

macro_rules! bugs {
    ($(#[$about:meta])* $name:ident: $($variant:ident $text:literal;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)]
        pub enum $name { $($variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// What it does.
            pub const fn text(self) -> &'static str { match self { $($name::$variant => $text,)* } }
        }
    };
}

bugs! {
    /// One way in which careless masters would be wrong.
    Bug:
    LogBeforeSync          "source: logs an object when it was sent, not when it is durable";
    LogWithoutIdentity     "source: believes a log although the file has another identity";
    LogOfOtherObjectSize   "source: believes a log that was cut with another object size";
    LogKeptOnFreshStart    "source: believes the log although the sink started a new unfinished file";
    LogKeptOnRestart       "source: a file that changed starts again with the bits of its old version";
    LogGoneBeforeDone      "source: deletes the log entry when it sends FILE_CLOSE";
    SkipForgetsLog         "source: deletes the log entry of a file that is there, but whose name may not be durable";
    KeptFileForgotten      "source: deletes the log entry of a file that failed, but stays at the sink for a later session";
    CloseUnconfirmed       "source: closes a file without asking whether it changed while it was read";
    CloseBeforeDurable     "source: closes a file when all objects were sent";
    CreditLostAtReconnect  "source: forgets the credits it holds when the connection is lost";
    CreditUsedTwice        "source: sends two payloads into one credit";
    RepairForgotten        "source: does not send again what the sink asked for";
    SlotLostAtReconnect    "source: forgets the slots whose payload was being sent";
    ReleasedWhileRead      "source: releases a file that storage is still reading";
    BundlesOfAnyTarget     "source: puts small files of different targets into one bundle";
    BundleNeverDue         "source: waits for a bundle to fill for as long as anything else goes on";
    LateReadCounts         "source: sends what comes of a read that was written off";
    SlowBundleHangs        "source: takes a bundle that is read slowly for one that hangs";
    PutBackIsRepair        "source: takes an object whose file could not be opened yet for one that was read before";
    SpilledCountsAsSent    "source: takes an object for sent when it is in the spill";
    SpillFailureLoses      "source: forgets an object that could not be written to the spill";
    SpillBelieved          "source: sends what the spill gives back without a look at its hash";
    SpillReusedWhileRead   "source: gives the place of a spilled object to another one while it is read back";
    SpillReusedWhileSent   "source: gives the place of a spilled object to another one while it is sent from there";
    SpilledOutlivesFile    "source: keeps what it has spilled of a file that was dropped";
    EndedEarly             "source: says BYE while bundles are still on the way";
    AckBeforeSync          "sink: acknowledges an object when it was written";
    MemberAckBeforeSync    "sink: acknowledges a bundle member when it was written";
    PublishBeforeSync      "sink: gives the final name before the data is durable";
    AckBeforeNameDurable   "sink: acknowledges an entry before its name is durable";
    FailedSyncIgnored      "sink: takes a failed sync for a good one";
    DroppedCounts          "source: what was durable of a file that it has dropped counts on";
    BeforeUncounted        "sink: does not count what was durable before of a file that goes on";
    NoticeUncounted        "sink: does not count among all files what is only named";
    UnlistedSwept          "sink: removes the unfinished files of what could not be listed this time";
    LogClearedUnlisted     "source: forgets what it logged of what could not be listed this time";
    LastStepTakesAll       "sink: removes a file of which all is durable as its last step fails";
    LostWriteKept          "sink: keeps what was written while a sync of its file failed";
    LateWriteInGroup       "sink: counts a write that finished during a sync as covered by it";
    ChangedMemberKept      "source: does not look at a member again that was hashed on its way";
    FollowingHashesSwapped "sink: takes the hashes that came behind a payload in the wrong order";
    FollowingHashForgotten "sink: forgets the hashes that came behind a payload if its announcement comes later";
    HashMismatchWritten    "sink: takes an object with the wrong hash as written";
    GrantWhileWriting      "sink: grants a slot again before its object is written";
    SlotsTakenBack         "sink: does not grant a slot again where fewer are needed, though the source waits for that";
    CreditBeforeAck        "sink: grants credits before the acknowledgement that made room for them";
    GrantsUsedInPart       "sink: does not allow a payload again of which a part had come when its connection was lost";
    OldEpochAccepted       "sink: accepts a payload of an older connection";
    OldAnnouncementAwaited "sink: waits for a payload that was announced on an older connection";
    MismatchAwaited        "sink: goes on with a connection whose payload was not what was announced";
    LostPayloadForgotten   "sink: does not ask again for what was lost with a connection";
    SealWithoutAll         "both: a file is closed one object early, and sealed all the same";
    DiscardWhileWriting    "sink: removes an unfinished file while objects are being written into it";
    DiscardWhileSyncing    "sink: removes an unfinished file while a sync of it is under way";
    ForgottenWhileOpen     "sink: lets storage forget a directory when its end is announced";
    RefusalUnanswered      "sink: forgets an entry that it refuses before the source has dropped it";
    CreatesUnpaced         "sink: makes files however slow that has become";
    MadeTakenAsWritten     "sink: takes a member of a bundle that was only made for a written one";
    WrittenTakenAsNamed    "sink: takes a member that is only written for one that has its name, durable";
    SlotFreedAtFirstPart   "sink: grants the slot of a bundle again when the members of one target are written";
    GroupUnbounded         "sink: grants credits however much waits to become durable";
    FileBlamesTarget       "both: takes a target for dead because of one file on which everything hangs";
    HangAwaited            "sink: waits for ever for what hangs";
    LateWriteForgotten     "sink: names a file into which a write that hangs may still come";
    KeptForNobody          "sink: leaves what was to stay for a later session where the source has begun anew";
    LatePartGoesOn         "sink: lets a thread go on with members that were asked for again";
    SlowPartHangs          "sink: takes members that are written slowly for such as hang";
    SlowMakingHangs        "sink: takes files that are made slowly for one that hangs";
    FullTargetEndsJob      "sink: ends the job when one of several targets is full";
    HungTargetTakesAll     "sink: hands out errands of a target on which others hang already";
    SyncsOfOneTarget       "sink: gives one target all threads for syncs";
    AbandonedSyncGood      "sink: takes a sync that it has given up for a good one";
    LateAnswerCounts       "sink: takes the late answer of what it has given up for one in time";
    NamesOfTwoGroups       "sink: makes the names of a group while those of another one are made durable";
    StragglerSyncedAgain   "sink: syncs a file again while a sync of it is still under way";
    ReliefUnbounded        "sink: replaces however many threads hang";
    AnsweredUnlaid         "sink: says that a file may be sent before it is known how it lies";
    FinishBeforeCommit     "sink: finishes while a group is still not durable";
    LinkForgetsUnacked     "link: does not repeat messages that the lost connection swallowed";
    LinkRepeatsDelivered   "link: processes a repeated message again";
}

bugs! {
    /// One way in which a careless scheduler would be wrong.
    SchedulerBug:
    CapIgnored         "gives one target all threads";
    AgingOff           "skips a congested target for ever";
    GateIgnored        "sends what the other end cannot place";
    GateNotGivenBack   "forgets that the other end is done";
    OpeningMissed      "does not see that a gate has opened";
    CountedTwice       "a request that was written off ends a second time when its thread comes back";
    WrittenOffNever    "waits for a hung request for ever";
    ArchiveGivenUp     "gives up what is brought back from an archive";
    ArchiveHeldBack    "asks an archive for one file after the other because that takes long";
    ReplacedAlways     "replaces however many threads are lost";
    DeadServed         "gives a dead target more";
    DeadNotHandedBack  "keeps what is queued for a dead target";
    CancelCures        "takes a request that was cancelled for an answer of its target";
    ExcuseIgnored      "takes a target for dead because of one file";
    ExcuseKept         "goes on excusing a target when what was lost there has come back";
    LostIsBusy         "passes over a target on which something is lost";
    LossStays          "counts what was lost though the target has answered others since";
    LostFillTarget     "has no room on a target beside what is lost there";
    LostSlotsForgotten "forgets that a request that was written off keeps its slot";
    RevivalMissed      "does not believe a dead target that answers";
    HealthySkipped     "gives up when the first target turns out to be congested";
    CongestedTwice     "gives a congested target several at a time";
    GentleNotTold      "does not say that a target is to be spared";
    BusiestFirst       "takes the target with the most under way";
    NewestFirst        "serves a queue from its end";
    LargestClassFirst  "serves objects for as long as there are any";
    IdleClassClaims    "lets a class of requests that was idle claim the time that it missed";
    ShutClassClaims    "the same for a class whose gates were closed";
    UngatedWaits       "serves what waits behind gates first";
    UrgentWaits        "serves urgent requests when nothing else is left";
    NeighboursIgnored  "has as much under way as if no other transfer were at the target";
    NeighboursKept     "leaves its part to neighbours that have gone";
    TurnIgnored        "gives a congested target a request though it is a neighbour's turn";
    AdviceObeyed       "believes neighbours more than what it sees itself";
}

bugs! {
    /// One way in which careless neighbours would be wrong.
    NeighbourBug:
    EverybodyFirst  "each takes the part that is the first one's";
    TurnsStand      "it is always the same one's turn";
    HeardForEver    "what a neighbour said holds for ever";
    UsersForgotten  "a user with more transfers gets more of a target";
}

/// The bug that is planted in a machine, if any; of no size without the feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planted<B = Bug>(
    #[cfg(feature = "planted-bugs")] pub Option<B>,
    #[cfg(not(feature = "planted-bugs"))] PhantomData<B>,
);

impl<B> Default for Planted<B> {
    fn default() -> Self {
        Planted(Default::default())
    }
}

impl<B: PartialEq> Planted<B> {
    /// Is this bug planted?
    #[inline]
    pub fn has(self, bug: B) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.0 == Some(bug);
        #[cfg(not(feature = "planted-bugs"))]
        {
            let _ = bug;
            false
        }
    }
}

#[cfg(all(test, not(feature = "planted-bugs")))]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_nothing_can_be_planted() {
        assert_eq!(size_of::<Planted>(), 0);
        assert!(Bug::ALL.iter().all(|bug| !Planted::default().has(*bug)));
    }
}
