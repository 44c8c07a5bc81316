//! A decorator that does what networks do at their worst, at a chosen byte or moment.
//!
//! Called by tests of every layer: above protection it is a failing peer, beneath it a failing (or hostile) network.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::gate::{Gate, lock};
use crate::{Cause, Closer, Receiver, Sender, Stream};

/// When a fault sets in.
#[derive(Clone, Debug)]
pub enum When {
    /// Once this many bytes have passed in the direction that has the fault.
    Byte(u64),
    /// At the signal. A cut is then at once, the other faults begin with the next call.
    Signal(Signal),
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The connection breaks, both ways.
    Cut,
    /// Nothing passes any more, and nobody is told; until the stream is closed, or the receive timeout.
    Stall,
    /// This bit (0 to 7) of the next byte is flipped; all others pass as they are.
    Flip(u8),
    /// From here on every call takes so much longer.
    Delay(Duration),
}

/// Sets faults off from another thread.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<Mutex<Raised>>);

#[derive(Debug, Default)]
struct Raised {
    raised: bool,
    cuts: Vec<Closer>,
}

impl Signal {
    /// Not raised yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Now, and from now on.
    pub fn raise(&self) {
        let mut state = lock(&self.0);
        state.raised = true;
        let cuts = std::mem::take(&mut state.cuts);
        drop(state);
        cuts.iter().for_each(Closer::close);
    }

    fn is_raised(&self) -> bool {
        lock(&self.0).raised
    }

    /// Has `closer` called when the signal is raised, or now if it was.
    fn cuts(&self, closer: Closer) {
        let mut state = lock(&self.0);
        if !state.raised {
            state.cuts.push(closer);
            return;
        }
        drop(state);
        closer.close();
    }
}

/// Puts a fault into what `stream` sends.
pub fn sending(stream: Stream, when: When, fault: Fault) -> Stream {
    let Stream { sender, receiver, closer, about, arrivals } = stream;
    let (trigger, closer) = Trigger::new(when, fault, closer);
    let spared = trigger.spared();
    let sender = Box::new(FaultSender { lower: sender, trigger });
    let receiver = Box::new(FaultReceiver { lower: receiver, trigger: spared, timeout: None });
    Stream { sender, receiver, closer, about, arrivals }
}

/// Puts a fault into what `stream` receives.
pub fn receiving(stream: Stream, when: When, fault: Fault) -> Stream {
    let Stream { sender, receiver, closer, about, arrivals } = stream;
    let (trigger, closer) = Trigger::new(when, fault, closer);
    let sender = Box::new(FaultSender { lower: sender, trigger: trigger.spared() });
    let receiver = Box::new(FaultReceiver { lower: receiver, trigger, timeout: None });
    Stream { sender, receiver, closer, about, arrivals }
}

struct Trigger {
    when: When,
    fault: Fault,
    /// Bytes that have passed.
    passed: u64,
    flipped: bool,
    /// Opened by the closer of this end.
    closed: Arc<Gate>,
    lower: Closer,
}

/// What a call may do next.
enum Step {
    /// Let at most so many bytes pass as they are.
    Pass(u64),
    /// Flip this bit of the next byte.
    Flip(u8),
}

impl Trigger {
    fn new(when: When, fault: Fault, lower: Closer) -> (Self, Closer) {
        let closed = Arc::new(Gate::default());
        if let (When::Signal(signal), Fault::Cut) = (&when, fault) {
            signal.cuts(lower.clone());
        }
        let closer = {
            let (closed, lower) = (closed.clone(), lower.clone());
            Closer::new(move || {
                closed.open();
                lower.close();
            })
        };
        (Trigger { when, fault, passed: 0, flipped: false, closed, lower }, closer)
    }

    /// For the other direction: no fault of its own, but a cut of this one is a cut there, not a close.
    fn spared(&self) -> Self {
        Trigger {
            when: When::Byte(u64::MAX),
            fault: self.fault,
            passed: 0,
            flipped: false,
            closed: self.closed.clone(),
            lower: self.lower.clone(),
        }
    }

    /// Applies what is due now, and says what may pass. `timeout` bounds a stall.
    fn step(&mut self, timeout: Option<Duration>) -> io::Result<Step> {
        let healthy = match &self.when {
            When::Byte(at) if self.passed < *at => at - self.passed,
            When::Byte(_) => 0,
            When::Signal(signal) if signal.is_raised() => 0,
            When::Signal(_) => u64::MAX,
        };
        if healthy > 0 {
            return Ok(Step::Pass(healthy));
        }
        match self.fault {
            Fault::Cut => {
                self.lower.close();
                Err(self
                    .closed_error()
                    .unwrap_or_else(|| Cause::Lost.error("the connection was cut (fault)")))
            }
            Fault::Stall => match self.closed.wait(timeout) {
                true => Err(Cause::Closed.error("the stream was closed at this end")),
                false => Err(Cause::Silent.error("no byte came within the timeout")),
            },
            Fault::Flip(_) if self.flipped => Ok(Step::Pass(u64::MAX)),
            Fault::Flip(bit) => Ok(Step::Flip(bit)),
            Fault::Delay(pause) => {
                self.closed.wait(Some(pause));
                Ok(Step::Pass(u64::MAX))
            }
        }
    }

    fn closed_error(&self) -> Option<io::Error> {
        self.closed.is_open().then(|| Cause::Closed.error("the stream was closed at this end"))
    }

    /// The error of a call below: a cut closes the stream there, which is not what the caller did.
    fn explain(&self, error: io::Error) -> io::Error {
        match crate::cause(&error) {
            Cause::Closed if !self.closed.is_open() => Cause::Lost.error("the connection was cut (fault)"),
            _ => error,
        }
    }
}

struct FaultSender {
    lower: Box<dyn Sender>,
    trigger: Trigger,
}

impl FaultSender {
    fn send_part(&mut self, mut part: &[u8]) -> io::Result<()> {
        while !part.is_empty() {
            let count = match self.trigger.step(None)? {
                Step::Pass(bytes) => {
                    let count = usize::try_from(bytes).unwrap_or(usize::MAX).min(part.len());
                    self.lower.send(&[IoSlice::new(&part[..count])])?;
                    count
                }
                Step::Flip(bit) => {
                    self.lower.send(&[IoSlice::new(&[part[0] ^ 1 << bit])])?;
                    self.trigger.flipped = true;
                    1
                }
            };
            self.trigger.passed += count as u64;
            part = &part[count..];
        }
        Ok(())
    }
}

impl Sender for FaultSender {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        parts.iter().try_for_each(|part| self.send_part(part)).map_err(|error| self.trigger.explain(error))
    }

    fn finish(&mut self) -> io::Result<()> {
        // An end passes like a byte: not through a cut or a stall.
        if matches!(self.trigger.fault, Fault::Cut | Fault::Stall) {
            self.trigger.step(None)?;
        }
        self.lower.finish().map_err(|error| self.trigger.explain(error))
    }
}

struct FaultReceiver {
    lower: Box<dyn Receiver>,
    trigger: Trigger,
    timeout: Option<Duration>,
}

impl Receiver for FaultReceiver {
    fn receive_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let step = self.trigger.step(self.timeout)?;
        let most = match step {
            Step::Pass(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX).min(into.len()),
            Step::Flip(_) => 1,
        };
        let count =
            self.lower.receive_some(&mut into[..most]).map_err(|error| self.trigger.explain(error))?;
        if let (Step::Flip(bit), true) = (step, count > 0) {
            into[0] ^= 1 << bit;
            self.trigger.flipped = true;
        }
        self.trigger.passed += count as u64;
        Ok(count)
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeout = timeout;
        self.lower.set_timeout(timeout)
    }
}
