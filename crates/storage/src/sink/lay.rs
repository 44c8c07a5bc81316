//! How files with objects lie. Where that is known only of a file that is there, it is made, and striped, before the source
//! hears that it may send it: on threads of their own, so that names wait for no target.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::op::Prepared;
use haul_model::stripe::Unlike;
use haul_model::{Entry, Failure, Laid, Plan, Token};

use super::{PosixSink, lock};
use crate::confine::sink_failure;
use crate::layout::{Outcome, stripe};
use crate::placing::Objects;

/// A file that gets its stripes by its size gets so many at most.
const STRIPES_MAX: u16 = 32;

/// What is known of how a file lies.
pub(super) enum Lies {
    /// All on the one usual target, or so.
    So(Option<Laid>),
    /// It has to be made first.
    Unknown,
}

impl PosixSink {
    /// How a file lies that starts or goes on in objects of this size, as far as that can be told without it.
    pub(super) fn lies(
        &self,
        entry: &Arc<Entry>,
        prepared: Prepared,
        object_bytes: Option<u32>,
    ) -> Result<Lies, Failure> {
        let (Some(placing), Some(object_bytes)) = (&self.placing, object_bytes) else {
            return Ok(Lies::So(None));
        };
        let objects = match prepared {
            Prepared::Start(_) => Objects::AtMost(object_bytes),
            Prepared::Resume(_) => Objects::Of(object_bytes),
            _ => return Ok(Lies::So(None)),
        };
        let (directory, _) = self.locate(entry)?;
        let (device, size) = (directory.identity.0, entry.size());
        if let Ok(told) = placing.without_a_look(device, size, objects) {
            return Ok(Lies::So(told));
        }
        // The first file of its device: most devices can be told by their directories.
        placing.layouts().meet(self.directories.descriptor(&directory)?.as_fd(), device);
        Ok(placing.without_a_look(device, size, objects).map_or(Lies::Unknown, Lies::So))
    }

    /// Makes a file, or opens the one that goes on, and looks how it lies.
    pub(super) fn lay(
        &self,
        entry: &Arc<Entry>,
        token: Token,
        resumed: bool,
        object_bytes: u32,
        source: Option<&Plan>,
    ) -> Result<(Option<Laid>, Option<Unlike>), Failure> {
        let Some(placing) = &self.placing else { return Ok((None, None)) };
        // Nobody misses the source's stripes who asked for others.
        let source = source.filter(|_| self.stripe.is_none());
        let (directory, _) = self.locate(entry)?;
        let (device, size) = (directory.identity.0, entry.size());
        let objects = if resumed { Objects::Of(object_bytes) } else { Objects::AtMost(object_bytes) };
        let plan = match placing.layouts().may_be_striped(device) {
            true => stripe::choose(self.stripe.as_ref(), source, size, STRIPES_MAX),
            false => None,
        };
        let (plan, lacks_pool) = match plan {
            Some(plan) if source.is_some() => {
                let (plan, lacks_pool) = placing.layouts().without_missing_pools(device, plan);
                (Some(plan), lacks_pool)
            }
            plan => (plan, false),
        };
        let file = self.unfinished(entry, token, object_bytes)?;
        let made = || {
            let (contents, outcome) = self.contents_striped(&file, plan.as_ref())?;
            self.hooks.before_lay().map_err(sink_failure)?;
            Ok((placing.laid(contents.as_fd(), device, size, objects), outcome))
        };
        let made: Result<_, Failure> = made();
        // Many files are made before the first of them comes: none stays open for that.
        file.close();
        match made {
            Ok((laid, outcome)) => {
                if let Some(laid) = &laid {
                    file.object_bytes.store(laid.object_bytes, Ordering::Release);
                }
                let unlike = match outcome {
                    Some(Outcome::Refused(_)) => Some(Unlike::NotTaken),
                    Some(Outcome::WithoutPools) => Some(Unlike::NoPool),
                    // Fewer targets than stripes is as near as it gets.
                    Some(Outcome::Set | Outcome::Other(_)) => lacks_pool.then_some(Unlike::NoPool),
                    None => None,
                };
                Ok((laid, unlike.filter(|why| source.is_some() && self.is_news(*why))))
            }
            Err(failure) => {
                match resumed {
                    // What was begun by an earlier session stays for a later one.
                    true => drop(lock(&self.states).remove(&entry.id)),
                    false => self.discard(entry.id, token, false),
                }
                Err(failure)
            }
        }
    }

    /// The first time that somebody asks.
    fn is_news(&self, why: Unlike) -> bool {
        !self.unlike_told[why as usize].swap(true, Ordering::Relaxed)
    }
}
