//! Puts the calling thread on CPUs.

use std::io;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::Cpus;

/// Puts the calling thread on these CPUs. Its memory is taken from their node from then on, as the kernel does by itself.
///
/// An error (a CPU went offline, the cpuset was narrowed, a number beyond what the call can say) costs speed at most: the
/// thread stays where it was.
pub fn pin(cpus: &Cpus) -> io::Result<()> {
    pin_thread(None, cpus)
}

/// The same of another thread of this process, which must not end meanwhile: its number would be another's.
pub(crate) fn pin_thread(thread: Option<Pid>, cpus: &Cpus) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpus.is_empty() || cpus.iter().any(|cpu| cpu >= CpuSet::MAX_CPU) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    cpus.iter().for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(thread, &set)?)
}

/// Where the calling thread may run.
pub fn affinity() -> io::Result<Cpus> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_was_put_and_other_threads_stay() {
        let before = affinity().unwrap();
        let one: Cpus = before.first().into_iter().collect();
        let of_thread = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                pin(&one).unwrap();
                affinity().unwrap()
            });
            thread.join().unwrap()
        });
        assert_eq!(of_thread, one);
        assert_eq!(affinity().unwrap(), before);
    }

    #[test]
    fn cpus_that_do_not_exist_are_an_error_and_change_nothing() {
        let before = affinity().unwrap();
        for wrong in ["", "8191", "1023"] {
            let cpus: Cpus = wrong.parse().unwrap();
            if wrong != "1023" || !before.has(1023) {
                assert!(pin(&cpus).is_err(), "{wrong}");
            }
        }
        assert_eq!(affinity().unwrap(), before);
    }
}
