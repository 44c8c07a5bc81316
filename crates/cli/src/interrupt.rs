//! How a command ends that is told to: [`signals::that_end`] says by what.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_mover::end::{Running, Stopper};
use haul_mover::{Error, threads};

use crate::{patience, signals};

/// What is told twice within this may be one event: a terminal that goes away, a host that goes down.
const ONE_EVENT: Duration = Duration::from_secs(1);
/// Ctrl-C is typed again sooner than that; but not as soon as one is passed on that was for all of a group.
const ONE_KEY: Duration = Duration::from_millis(150);
/// What is done before a session begins looks whether it is to end, but where it waits for storage. Nothing is under way then.
const UNHEARD_MAX: Duration = Duration::from_secs(10);
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// The first signal ends the session in order; a second one ends the process at once.
pub struct Interrupt {
    stopper: Arc<Mutex<Option<Stopper>>>,
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes the signals over. `unheard` tells of the end where nothing hears of the first one.
    pub fn install(unheard: impl FnOnce() + Send + 'static) -> Result<Interrupt, Error> {
        let mut signals = signal_hook::iterator::Signals::new(signals::that_end())
            .map_err(|error| Error::os(Code::SystemRefused, "signals", &error))?;
        let interrupt = Interrupt { stopper: Arc::default(), asked: Arc::default() };
        let (stopper, asked) = (interrupt.stopper.clone(), interrupt.asked.clone());
        let watch = move || {
            let (mut first, mut unheard) = (None, Some(unheard));
            for signal in signals.forever() {
                if asked.swap(true, Ordering::SeqCst) {
                    let is_typed = signal == signal_hook::consts::SIGINT;
                    let one_event = if is_typed { ONE_KEY } else { ONE_EVENT };
                    if first.is_none_or(|first: Instant| first.elapsed() >= one_event) {
                        std::process::exit(130);
                    }
                    continue;
                }
                first = Some(Instant::now());
                match (stopper_in(&stopper), unheard.take()) {
                    (Some(stopper), _) => stopper.stop(Code::Interrupted.into()),
                    (None, Some(unheard)) => end_unless_it_begins(&stopper, unheard),
                    (None, None) => {}
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

fn stopper_in(place: &Mutex<Option<Stopper>>) -> Option<Stopper> {
    place.lock().ok().and_then(|place| place.clone())
}

/// A session that begins after all is stopped where that is watched.
fn end_unless_it_begins(stopper: &Arc<Mutex<Option<Stopper>>>, unheard: impl FnOnce() + Send + 'static) {
    let stopper = Arc::clone(stopper);
    let end = move || {
        std::thread::sleep(UNHEARD_MAX);
        if stopper_in(&stopper).is_none() {
            // Whoever reads that may hang, too.
            let _ = patience::within(TOLD_WITHIN, unheard);
            std::process::exit(130);
        }
    };
    // Where there is no thread to be had, a second signal ends it.
    let _ = threads::start("haul-unheard", end);
}
