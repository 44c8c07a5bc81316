//! Files, directories and links, each in two states.

use std::collections::BTreeMap;

use super::content::Content;
use super::crash::{Choice, CrashReport, Shares};
use super::{Number, Time};
use crate::random::Random;

/// What `chmod`, `chown` and `utimensat` set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Permission bits (0o7777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub accessed: Time,
    /// Last modification.
    pub modified: Time,
    /// Last status change.
    pub changed: Time,
}

/// What a node is.
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory(Directory),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// Fifo, socket or device.
    Special {
        /// The `S_IFMT` bits.
        format: u32,
        /// The device number.
        device: u32,
    },
}

/// The names of a directory.
pub struct Directory {
    pub(super) parent: Number,
    pub(super) names: BTreeMap<Vec<u8>, Number>,
    pub(super) durable: BTreeMap<Vec<u8>, Number>,
    /// Changes of its names that are not durable, oldest first.
    pub(super) pending: Vec<u64>,
}

impl Directory {
    pub(super) fn new(parent: Number) -> Self {
        Directory { parent, names: BTreeMap::new(), durable: BTreeMap::new(), pending: Vec::new() }
    }

    pub(super) fn restart(&mut self, parent: Number) {
        self.names = self.durable.clone();
        self.pending.clear();
        self.parent = parent;
    }
}

/// A node.
pub struct Node {
    /// What it is.
    pub body: Body,
    /// As shown.
    pub attributes: Attributes,
    pub(super) durable_attributes: Attributes,
    /// The name that it was last given: faults find their files by it.
    pub(super) last_name: Vec<u8>,
    /// Names that are shown.
    pub links: u32,
    /// Names on the medium, and changes under way that mention it.
    pub(super) held: u32,
    /// Handles.
    pub(super) opens: u32,
    /// What the kernel knows of it. Signed: forgets of the time before a crash may still come.
    pub(super) lookups: i64,
}

impl Node {
    pub(super) fn new(body: Body, attributes: Attributes, name: &[u8]) -> Self {
        Node {
            body,
            attributes,
            durable_attributes: attributes,
            last_name: name.to_vec(),
            links: 1,
            held: 0,
            opens: 0,
            lookups: 0,
        }
    }

    /// Nobody can reach it any more, neither now nor after a crash.
    pub(super) fn is_garbage(&self) -> bool {
        self.links == 0 && self.held == 0 && self.opens == 0 && self.lookups <= 0
    }

    pub(super) fn restart(&mut self, links: u32) {
        self.links = links;
        self.held = links;
        self.opens = 0;
        self.lookups = 0;
    }

    pub(super) fn crash_attributes(
        &mut self,
        random: &mut Random,
        shares: &Shares,
        report: &mut CrashReport,
    ) {
        let (new, old) = (self.attributes, self.durable_attributes);
        if new == old {
            return;
        }
        report.attributes_unsynced += 1;
        let mut keep = || Choice::roll(random, shares.attributes, 0) == Choice::Kept;
        let (mode, owner, times) = (keep(), keep(), keep());
        report.attributes_lost += u64::from(!(mode && owner && times));
        let mut survived = old;
        if mode {
            survived.mode = new.mode;
        }
        if owner {
            (survived.uid, survived.gid) = (new.uid, new.gid);
        }
        if times {
            (survived.accessed, survived.modified, survived.changed) =
                (new.accessed, new.modified, new.changed);
        }
        self.attributes = survived;
        self.durable_attributes = survived;
    }
}
