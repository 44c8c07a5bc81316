//! Threads, and what a user is told where the system gives no more.

use std::thread::{Builder, JoinHandle};

use haul_model::Code;

use crate::error::Error;

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
