//! How files with objects lie: they are made, and striped, before the source hears that it may send them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::op::Prepared;
use haul_model::stripe::Unlike;
use haul_model::{Entry, Failure, Laid, Plan};
use rustix::fs;

use super::PosixSink;
use crate::confine::sink_failure;
use crate::layout::{Outcome, stripe};
use crate::placing::Objects;

/// A file that gets its stripes by its size gets so many at most.
const STRIPES_MAX: u16 = 32;

/// How a file lies, and how it is not striped.
#[derive(Default)]
pub(super) struct Lies {
    pub laid: Option<Laid>,
    pub unlike: Option<Unlike>,
}

impl PosixSink {
    /// How a file lies that starts or goes on in objects of this size, if it is not all on the one usual target.
    ///
    /// Where files may lie on several targets it is made now: only then can it be known. Its size is set, too: a file
    /// system may let only one write at a time extend a file, and a slow target would hold up the others.
    pub(super) fn lay(
        &self,
        entry: &Arc<Entry>,
        prepared: Prepared,
        object_bytes: Option<u32>,
        source: Option<&Plan>,
    ) -> Result<Lies, Failure> {
        let nothing = Lies::default();
        let (Some(placing), Some(object_bytes)) = (&self.placing, object_bytes) else { return Ok(nothing) };
        let (token, objects) = match prepared {
            Prepared::Start(token) => (token, Objects::AtMost(object_bytes)),
            Prepared::Resume(token) => (token, Objects::Of(object_bytes)),
            _ => return Ok(nothing),
        };
        let (directory, _) = self.locate(entry)?;
        let (device, size) = (directory.identity.0, entry.size());
        if let Ok(told) = placing.without_a_look(device, size, objects) {
            return Ok(Lies { laid: told, unlike: None });
        }
        // The first file of its device: most devices can be told by their directories.
        placing.layouts().meet(self.directories.descriptor(&directory)?.as_fd(), device);
        if let Ok(told) = placing.without_a_look(device, size, objects) {
            return Ok(Lies { laid: told, unlike: None });
        }
        // Nobody misses the source's stripes who asked for others.
        let source = source.filter(|_| self.stripe.is_none());
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
            fs::ftruncate(&contents, size).map_err(sink_failure)?;
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
                Ok(Lies { laid, unlike: unlike.filter(|why| source.is_some() && self.is_news(*why)) })
            }
            Err(failure) => {
                // What was begun by an earlier session stays for a later one.
                if matches!(prepared, Prepared::Start(_)) {
                    self.discard(entry.id, token);
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
