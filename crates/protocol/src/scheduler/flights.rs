//! Requests that were picked: under way, written off, or done while their gate's unit is still out.

use alloc::vec::Vec;

/// Names one pick. The number of a freed one is used again with another `life`, so a late word is never taken for
/// another's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    index: u32,
    life: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Free,
    UnderWay,
    /// Written off; `replaced` if the caller was told to replace its thread, `excused` if it says nothing of its target.
    Lost {
        replaced: bool,
        excused: bool,
    },
    /// Its I/O is done, and the other end still works on it.
    AtOtherEnd,
}

#[derive(Clone, Copy)]
pub(super) struct Flight<T> {
    pub item: T,
    pub target: u32,
    pub gate: u32,
    pub bytes: u32,
    /// Number of its class; [`URGENT`] has none.
    pub class: usize,
    /// Requests of its target that were under way when it began, itself included.
    pub depth: u32,
    /// It was picked while its target was held back.
    pub gentle: bool,
    pub started_nanos: u64,
    pub deadline_nanos: u64,
    pub stage: Stage,
    pub place: Place,
}

/// Where a flight is kept; set by [`Flights`].
#[derive(Clone, Copy)]
pub(super) struct Place {
    life: u32,
    older: u32,
    newer: u32,
}

impl Default for Place {
    fn default() -> Self {
        Place { life: 0, older: NOBODY, newer: NOBODY }
    }
}

/// The class number of urgent requests.
pub(super) const URGENT: usize = usize::MAX;
const NOBODY: u32 = u32::MAX;

/// The requests of one target that are under way, oldest first (urgent ones are not in it).
#[derive(Clone, Copy)]
pub(super) struct Line {
    oldest: u32,
    newest: u32,
}

impl Default for Line {
    fn default() -> Self {
        Line { oldest: NOBODY, newest: NOBODY }
    }
}

pub(super) struct Flights<T> {
    flights: Vec<Flight<T>>,
    free: Vec<u32>,
    under_way: u32,
    /// No request's deadline is earlier.
    look_nanos: u64,
    /// Overdue ones that were found, and not written off yet.
    overdue: Vec<u32>,
}

impl<T: Copy> Flights<T> {
    pub fn new() -> Self {
        Flights {
            flights: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            look_nanos: u64::MAX,
            overdue: Vec::new(),
        }
    }

    /// How many are under way.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Begins one; its stage and life are set here.
    pub fn begin(&mut self, flight: Flight<T>, line: Option<&mut Line>) -> Ticket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(flight);
            self.flights.len() as u32 - 1
        });
        let life = self.flights[index as usize].place.life.wrapping_add(1);
        let place = Place { life, ..Place::default() };
        self.flights[index as usize] = Flight { stage: Stage::UnderWay, place, ..flight };
        self.look_nanos = self.look_nanos.min(flight.deadline_nanos);
        self.under_way += 1;
        if let Some(line) = line {
            self.flights[index as usize].place.older = line.newest;
            match line.newest {
                NOBODY => line.oldest = index,
                newest => self.flights[newest as usize].place.newer = index,
            }
            line.newest = index;
        }
        Ticket { index, life }
    }

    pub fn get(&self, ticket: Ticket) -> Option<Flight<T>> {
        let flight = self.flights.get(ticket.index as usize)?;
        (flight.place.life == ticket.life && flight.stage != Stage::Free).then_some(*flight)
    }

    /// One that was written off says nothing of its target, which is returned; once.
    pub fn excuse(&mut self, ticket: Ticket) -> Option<u32> {
        let flight = self.flights.get_mut(ticket.index as usize)?;
        match &mut flight.stage {
            Stage::Lost { excused, .. } if flight.place.life == ticket.life && !*excused => *excused = true,
            _ => return None,
        }
        Some(flight.target)
    }

    /// The same for all of a target.
    pub fn excuse_all(&mut self, target: u32) {
        for flight in self.flights.iter_mut().filter(|flight| flight.target == target) {
            if let Stage::Lost { excused, .. } = &mut flight.stage {
                *excused = true;
            }
        }
    }

    /// Ends the I/O of one that is under way; it goes on as `stage`.
    pub fn end(&mut self, ticket: Ticket, stage: Stage, line: Option<&mut Line>) {
        let index = ticket.index;
        let Place { older, newer, .. } = self.flights[index as usize].place;
        if let Some(line) = line {
            match older {
                NOBODY => line.oldest = newer,
                _ => self.flights[older as usize].place.newer = newer,
            }
            match newer {
                NOBODY => line.newest = older,
                _ => self.flights[newer as usize].place.older = older,
            }
        }
        self.under_way -= 1;
        self.flights[index as usize].stage = stage;
        if stage == Stage::Free {
            self.free.push(index);
        }
    }

    /// Forgets one whose I/O has ended.
    pub fn free(&mut self, ticket: Ticket) {
        self.flights[ticket.index as usize].stage = Stage::Free;
        self.free.push(ticket.index);
    }

    /// The oldest of a line.
    pub fn oldest(&self, line: &Line) -> Option<&Flight<T>> {
        self.flights.get(line.oldest as usize)
    }

    /// When to look for overdue ones.
    pub fn deadline_nanos(&self) -> Option<u64> {
        let next = if self.overdue.is_empty() { self.look_nanos } else { 0 };
        (self.under_way > 0 && next < u64::MAX).then_some(next)
    }

    /// It is overdue then, and no sooner.
    pub fn renew(&mut self, ticket: Ticket, deadline_nanos: u64) {
        let flight = &mut self.flights[ticket.index as usize];
        flight.deadline_nanos = flight.deadline_nanos.max(deadline_nanos);
    }

    /// One that is overdue. All are looked at, but at most once for each deadline that passes.
    pub fn next_overdue(&mut self, now_nanos: u64) -> Option<Ticket> {
        if self.overdue.is_empty() && now_nanos >= self.look_nanos {
            self.look_nanos = u64::MAX;
            for (index, flight) in self.flights.iter().enumerate().rev() {
                if flight.stage != Stage::UnderWay {
                    continue;
                }
                match flight.deadline_nanos <= now_nanos {
                    true => self.overdue.push(index as u32),
                    false => self.look_nanos = self.look_nanos.min(flight.deadline_nanos),
                }
            }
        }
        while let Some(index) = self.overdue.pop() {
            let flight = &self.flights[index as usize];
            if flight.stage == Stage::UnderWay && flight.deadline_nanos <= now_nanos {
                return Some(Ticket { index, life: flight.place.life });
            }
        }
        None
    }
}
