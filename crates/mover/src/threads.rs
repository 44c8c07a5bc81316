//! Threads and descriptors, and what a user is told where the system gives no more.

use std::thread::{Builder, JoinHandle};

use haul_model::Code;

use crate::error::Error;

/// What an end has open at any rate, whatever it copies, and somewhat more. With fewer, each file would wait for one, mostly in vain.
const DESCRIPTORS_MIN: usize = 32;

/// May this process have as many open files as an end has to have?
pub fn check_descriptors() -> Result<(), Error> {
    match haul_storage::local::raise_descriptor_limit() {
        limit if limit < DESCRIPTORS_MIN => {
            let about = format!(
                "a process may have no more than {limit} open files, and this needs {DESCRIPTORS_MIN}"
            );
            Err(Error::new(Code::SystemRefused, about).hint("allow more open files (ulimit -n)"))
        }
        _ => Ok(()),
    }
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
