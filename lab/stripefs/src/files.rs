//! What the metadata server does for a file: its layout, and its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::attribute::{self, View};
use crate::filesystem::{Shared, StripeFs};
use crate::layout::{Component, Layout};
use crate::names::ROOT;
use crate::node::Node;

impl StripeFs {
    /// The layout of a file once everything before `end` has its objects. A file without one gets what its directory
    /// said when it was made.
    pub(crate) fn instantiate(&self, node: &Node, end: u64) -> Result<Arc<Layout>, Errno> {
        let mut state = node.state();
        let wish = match node.layout_of(&mut state)?.or_else(|| state.wish.clone()) {
            Some(wish) => wish,
            None => Arc::new(self.default_layout(&*self.shared().names.node(ROOT)?)?),
        };
        let new_id = || self.shared().names.new_number();
        match self.shared().policy.instantiate(&wish, end, new_id)? {
            Some(layout) => node.set_layout(&mut state, layout),
            None => Ok(wish),
        }
    }

    /// What new files in a directory get: its own default, else the root's, else the file system's.
    pub(crate) fn default_layout(&self, parent: &Node) -> Result<Layout, Errno> {
        let own = parent.layout()?;
        let default = match own {
            None if parent.number != ROOT => self.shared().names.node(ROOT)?.layout()?,
            own => own,
        };
        match default {
            Some(layout) => self.shared().policy.admit((*layout).clone()),
            None => Ok(self.shared().policy.default_layout()),
        }
    }

    /// Sets the layout of a file that has no objects yet, which gives it those of the first component; or the default of
    /// a directory. An empty value, or one that wishes nothing, removes a directory's.
    pub(crate) fn set_layout(&self, node: &Node, value: &[u8]) -> Result<(), Errno> {
        match node.kind {
            FileType::Directory if value.is_empty() => return node.remove_layout(),
            FileType::Directory | FileType::RegularFile => {}
            _ => return Err(Errno::INVAL),
        }
        let wish = attribute::decode_wish(value)?;
        let Shared { behaviour, policy, .. } = self.shared();
        if behaviour.refuse_unknown_pool.load(Ordering::Relaxed) && policy.has_unknown_pool(&wish) {
            return Err(Errno::INVAL);
        }
        if node.kind == FileType::Directory {
            let only = wish.components.first().filter(|_| !wish.composite);
            let nothing = Component::plain(0, 0);
            if only == Some(&nothing) {
                return node.remove_layout();
            }
            self.shared().policy.admit(wish.clone())?;
            return node.set_layout(&mut node.state(), wish).map(drop);
        }
        let admitted = self.shared().policy.admit(wish)?;
        let mut state = node.state();
        if node.layout_of(&mut state)?.is_some() {
            let refuse = self.shared().behaviour.refuse_set_again.load(Ordering::Relaxed);
            return if refuse { Err(Errno::EXIST) } else { Ok(()) };
        }
        let new_id = || self.shared().names.new_number();
        let layout = self.shared().policy.instantiate(&admitted, 1, new_id)?.unwrap_or(admitted);
        node.set_layout(&mut state, layout).map(drop)
    }

    /// The attribute as users see it. `ENODATA` where there is none: other kinds, and files without objects.
    pub(crate) fn shown_layout(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        match node.kind {
            FileType::Directory => Ok(attribute::encode(&self.default_layout(node)?, View::Directory)),
            FileType::RegularFile => match node.layout()? {
                Some(layout) => Ok(attribute::encode(&layout, View::File(node.number))),
                None => Err(Errno::NODATA),
            },
            _ => Err(Errno::NODATA),
        }
    }

    /// One more user of a file, which may need objects now. A file that lost its last name, and had no user, is gone.
    pub(crate) fn opened(&self, node: &Arc<Node>, needs_objects: bool) -> Result<(), Errno> {
        let mut state = node.state();
        if state.dead && state.opens == 0 {
            return Err(Errno::STALE);
        }
        state.opens += 1;
        drop(state);
        if needs_objects
            && node.kind == FileType::RegularFile
            && let Err(errno) = self.instantiate(node, 1)
        {
            self.closed(node);
            return Err(errno);
        }
        Ok(())
    }

    /// One user less.
    pub(crate) fn closed(&self, node: &Arc<Node>) {
        let mut state = node.state();
        state.opens = state.opens.saturating_sub(1);
        if state.opens > 0 {
            return;
        }
        state.close();
        let is_gone = state.dead;
        drop(state);
        if is_gone {
            self.destroy(node);
        }
    }

    /// The last name of a file is gone.
    pub(crate) fn bury(&self, node: &Arc<Node>) {
        let mut state = node.state();
        state.dead = true;
        let is_gone = state.opens == 0;
        drop(state);
        if is_gone {
            self.destroy(node);
        }
    }
}
