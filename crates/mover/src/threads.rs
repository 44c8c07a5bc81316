//! Threads and descriptors, and what a user is told where the system gives no more.

use std::thread::{Builder, JoinHandle};

use haul_model::Code;

use crate::error::Error;

/// What an end has open at any rate beside its streams, whatever it copies, and somewhat more. With fewer, each file would wait for one,
/// mostly in vain.
const DESCRIPTORS_MIN: usize = 28;
/// A stream has two ends, which may be in one process.
const DESCRIPTORS_PER_STREAM: usize = 2;

/// So many threads at storage are among what is open at any rate; each of the others has a file open, too, and its directory.
const IO_THREADS_COUNTED: usize = 8;
const DESCRIPTORS_PER_THREAD: usize = 2;

/// May this process have as many open files as an end with so many streams and threads at storage has to have?
pub fn check_descriptors(streams: u16, io_threads: usize) -> Result<(), Error> {
    let limit = haul_storage::local::raise_descriptor_limit();
    let more_threads = io_threads.saturating_sub(IO_THREADS_COUNTED);
    let needed = DESCRIPTORS_MIN + DESCRIPTORS_PER_STREAM * usize::from(streams);
    let needed = needed.saturating_add(more_threads.saturating_mul(DESCRIPTORS_PER_THREAD));
    if limit >= needed {
        return Ok(());
    }
    let about = format!("a process may have no more than {limit} open files, and this needs {needed}");
    Err(Error::new(Code::SystemRefused, about)
        .hint("allow more open files (ulimit -n), or fewer --streams and --io-threads"))
}

/// Starts one.
pub fn start<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(run).map_err(|error| {
        Error::os(Code::SystemRefused, format!("starting the thread {name}"), &error)
            .hint("`ulimit -u` and `pids.max` of the control group limit threads, `ulimit -v` and `memory.max` memory")
    })
}
