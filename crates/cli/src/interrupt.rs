//! How a command ends that is told to: [`signals::that_end`] says by what.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_mover::end::{Running, Stopper};
use haul_mover::{Error, threads};

use crate::signals;

/// What is told twice within this may be one event: a terminal that goes away, a host that goes down. But for Ctrl-C.
const ONE_EVENT: Duration = Duration::from_secs(1);

/// The first signal ends the session in order; a second one ends the process at once.
pub struct Interrupt {
    stopper: Arc<Mutex<Option<Stopper>>>,
    asked: Arc<AtomicBool>,
    /// The ssh that is told something, and takes nothing before it is connected; 0: none.
    connecting: Arc<AtomicI32>,
}

impl Interrupt {
    /// Does what may wait for this process, unless it is interrupted.
    pub fn while_connecting<T>(
        &self,
        waits_for: i32,
        act: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.connecting.store(waits_for, Ordering::SeqCst);
        let done = self.check().and_then(|()| act());
        self.connecting.store(0, Ordering::SeqCst);
        done
    }

    /// Takes the signals over.
    pub fn install() -> Result<Interrupt, Error> {
        let mut signals = signal_hook::iterator::Signals::new(signals::that_end())
            .map_err(|error| Error::os(Code::SystemRefused, "signals", &error))?;
        let interrupt =
            Interrupt { stopper: Arc::default(), asked: Arc::default(), connecting: Arc::default() };
        let (stopper, asked) = (interrupt.stopper.clone(), interrupt.asked.clone());
        let connecting = interrupt.connecting.clone();
        let watch = move || {
            let mut first = None;
            for signal in signals.forever() {
                if asked.swap(true, Ordering::SeqCst) {
                    let is_typed = signal == signal_hook::consts::SIGINT;
                    if is_typed || first.is_none_or(|first: Instant| first.elapsed() >= ONE_EVENT) {
                        std::process::exit(130);
                    }
                    continue;
                }
                first = Some(Instant::now());
                if let Some(ssh) = rustix::process::Pid::from_raw(connecting.load(Ordering::SeqCst)) {
                    // It may have ended by itself.
                    let _ = rustix::process::kill_process(ssh, rustix::process::Signal::TERM);
                }
                if let Ok(stopper) = stopper.lock()
                    && let Some(stopper) = stopper.as_ref()
                {
                    stopper.stop(Code::Interrupted.into());
                }
            }
        };
        threads::start("haul-signals", watch)?;
        Ok(interrupt)
    }

    /// From now on this end is stopped.
    pub fn watch(&self, running: &Running) {
        let stopper = running.stopper();
        if let Ok(mut place) = self.stopper.lock() {
            *place = Some(stopper.clone());
        }
        // Whoever asked before that did not find it.
        if self.asked.load(Ordering::SeqCst) {
            stopper.stop(Code::Interrupted.into());
        }
    }

    /// Was it asked for?
    pub fn check(&self) -> Result<(), Error> {
        if self.asked.load(Ordering::SeqCst) { Err(Error::new(Code::Interrupted, "")) } else { Ok(()) }
    }
}
