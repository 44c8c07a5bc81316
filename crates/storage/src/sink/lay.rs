//! How files with objects lie: they are made, and striped, before the source hears that it may send them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::op::Prepared;
use haul_model::{Entry, Failure, Laid};
use rustix::fs;

use super::PosixSink;
use crate::confine::sink_failure;
use crate::layout::stripe;
use crate::placing::Objects;

/// A file that gets its stripes by its size gets so many at most.
const STRIPES_MAX: u16 = 32;

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
    ) -> Result<Option<Laid>, Failure> {
        let (Some(placing), Some(object_bytes)) = (&self.placing, object_bytes) else { return Ok(None) };
        let (token, objects) = match prepared {
            Prepared::Start(token) => (token, Objects::AtMost(object_bytes)),
            Prepared::Resume(token) => (token, Objects::Of(object_bytes)),
            _ => return Ok(None),
        };
        let (directory, _) = self.locate(entry)?;
        let (device, size) = (directory.identity.0, entry.size());
        if let Ok(told) = placing.without_a_look(device, size, objects) {
            return Ok(told);
        }
        // The first file of its device: most devices can be told by their directories.
        placing.layouts().meet(self.directories.descriptor(&directory)?.as_fd(), device);
        if let Ok(told) = placing.without_a_look(device, size, objects) {
            return Ok(told);
        }
        let plan = match placing.layouts().may_be_striped(device) {
            true => stripe::choose(self.stripe.as_ref(), None, size, STRIPES_MAX),
            false => None,
        };
        let file = self.unfinished(entry, token, object_bytes)?;
        let made = || {
            let contents = self.contents_striped(&file, plan.as_ref())?;
            fs::ftruncate(&contents, size).map_err(sink_failure)?;
            Ok(placing.laid(contents.as_fd(), device, size, objects))
        };
        let laid: Result<_, Failure> = made();
        // Many files are made before the first of them comes: none stays open for that.
        file.close();
        match laid {
            Ok(Some(laid)) => {
                file.object_bytes.store(laid.object_bytes, Ordering::Release);
                Ok(Some(laid))
            }
            Ok(None) => Ok(None),
            Err(failure) => {
                // What was begun by an earlier session stays for a later one.
                if matches!(prepared, Prepared::Start(_)) {
                    self.discard(entry.id, token);
                }
                Err(failure)
            }
        }
    }
}
