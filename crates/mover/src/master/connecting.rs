//! The connection of a running master: asked for, made, tried again, lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_protocol::Event;
use haul_transport::rate;
use haul_wire::{FEATURE_PROFILE, Role};

use super::{Machine, Request, Running};
use crate::Error;
use crate::comm::Connection;
use crate::connection::{Established, FIRST_ATTEMPTS};
use crate::log::Logger;
use crate::missing::Missing;
use crate::patience;
use crate::report::Report;

/// So long nothing is asked for where the caller takes nothing.
const BEHIND_PAUSE: Duration = Duration::from_millis(100);
/// The other end may have noticed the loss so much earlier.
const NEARLY: Duration = Duration::from_secs(2);

/// The state of the connection, as the loop sees it.
pub(super) enum Wire {
    /// None, and one was asked for.
    Wanted { since: Instant, first: bool },
    /// It stands.
    Up(Connection),
    /// Its threads are ending.
    Ending { since: Instant },
}

impl Wire {
    pub fn is_up(&self, epoch: u32) -> bool {
        matches!(self, Wire::Up(connection) if connection.epoch == epoch)
    }
}

impl<M: Machine> Running<M> {
    /// Asks for a connection, for as long as `--reconnect` still allows.
    pub(super) fn request(&mut self) {
        let Wire::Wanted { since, first } = self.wire else { return };
        // What a connection brings before it is held up would come anew with each. The other end is not to blame for the time.
        if self.master.reports.is_far_behind() {
            let now = Instant::now();
            self.wire = Wire::Wanted { since: now, first };
            self.retry_at = Some(now + BEHIND_PAUSE);
            return;
        }
        self.retry_at = None;
        self.master.introduction.received = self.master.link.received();
        let patience = patience::in_all(self.master.tuning.reconnect, first).saturating_sub(since.elapsed());
        let request = Request { introduction: self.master.introduction.clone(), patience };
        let _ = self.master.connector.try_send(request);
    }

    pub(super) fn on_connected(&mut self, mut established: Established) {
        if !matches!(self.wire, Wire::Wanted { .. }) {
            return;
        }
        let epoch = established.epoch;
        self.master.introduction.epoch = epoch;
        let again = self
            .check_received(established.peer_received)
            .and_then(|()| self.master.link.connected(epoch, established.peer_received));
        let again = match again {
            Ok(again) => again,
            Err(failure) => return self.event(Event::Stop(failure)),
        };
        let cipher = established.data.first().and_then(|stream| stream.about().cipher);
        // Where bytes go through a processor's cache to be encrypted, they can be hashed there; clear streams take them from
        // their files without looking.
        let hashes_on_the_way = !established.data.is_empty()
            && established
                .data
                .iter()
                .all(|stream| stream.about().same_host && stream.about().cipher.is_some());
        let round_trip = established.data.iter().filter_map(|stream| stream.about().round_trip).min();
        self.master.reports.put(Report::Connected { streams: established.data.len(), cipher });
        let peer = established.peer.clone();
        self.tells_profile = peer.features & FEATURE_PROFILE != 0;
        self.master.profiler.connected(established.shared, round_trip);
        if let (Role::Source, Some(limit)) = (M::ROLE, &self.limit) {
            let data = std::mem::take(&mut established.data);
            established.data = data.into_iter().map(|stream| rate::wrap(stream, limit)).collect();
        }
        let log = self.master.logger.as_ref().and_then(Logger::comm);
        let peer_address = established.data.first().and_then(|stream| stream.about().peer);
        self.master.muster.placer.begin(peer_address.map(|address| address.ip()));
        let (pool, inputs) = (&self.master.pool, &self.master.inputs_sender);
        let busy = self.in_vain.busy_of(established.data.len());
        let connection =
            Connection::start(established, (M::ROLE, busy), pool, log, inputs, &self.master.muster);
        let connection = match connection {
            Ok(connection) => connection,
            // A next connection would need them, too.
            Err(error) => return self.stop(error),
        };
        self.written = Arc::clone(&connection.written);
        again.into_iter().for_each(|frame| drop(connection.frames.send(frame)));
        self.wire = Wire::Up(connection);
        self.heard = Instant::now();
        self.since_connected = self.heard;
        self.missing = Missing::new(self.heard);
        if let (Role::Sink, Some(round_trip)) = (M::ROLE, round_trip) {
            self.event(Event::RoundTrip { nanos: u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX) });
        }
        if M::ROLE == Role::Source {
            self.event(Event::HashesOnTheWay(hashes_on_the_way));
        }
        self.event(Event::LinkUp { epoch, peer });
    }

    /// An attempt has failed. The first connection of a session is not tried again by the end that dials, but for one that broke while
    /// it was made: what is wrong then will not pass by itself. A lost one is, until the patience ends.
    pub(super) fn on_unreachable(&mut self, error: Error) {
        let Wire::Wanted { since, first } = self.wire else { return };
        let hopeless = error.failure.code.retry() != haul_model::error::Retry::Reconnect;
        let is_broken = error.failure.code == Code::ConnectionLost;
        self.broken_at_first += u32::from(first && is_broken);
        let is_last = first && (!is_broken || self.broken_at_first >= FIRST_ATTEMPTS);
        let patience = patience::in_all(self.master.tuning.reconnect, first);
        if is_last || hopeless || since.elapsed() >= patience {
            // An end that nobody could reach for as long as that has ended for want of it: the path was what failed.
            let for_want = error.failure.code == Code::PeerEnded && since.elapsed() + NEARLY >= patience;
            let lost = self.last_error.take_if(|last| for_want && last.failure.code == Code::ConnectionLost);
            return self.stop(lost.unwrap_or(error));
        }
        self.last_error = Some(error);
        self.retry_at = Some(Instant::now() + patience::pause(since.elapsed()));
    }

    pub(super) fn on_lost(&mut self, epoch: u32, cause: String) {
        if !self.wire.is_up(epoch) {
            return;
        }
        let ending = Wire::Ending { since: Instant::now() };
        // Whoever receives would wait until there is less of it.
        self.put_aside.iter_mut().for_each(|message| message.weight = None);
        if let Wire::Up(connection) = std::mem::replace(&mut self.wire, ending) {
            let have_ended = connection.tear_down();
            self.last_error = Some(Error::new(Code::ConnectionLost, cause.clone()));
            let progress = self.master.machine.stats().progress();
            self.in_vain.lost(progress, self.since_connected.elapsed(), Instant::now());
            self.master.reports.put(Report::Reconnecting { cause });
            if have_ended {
                self.take_what_waits();
                self.on_down();
            }
        }
    }

    /// What the threads of a connection that have ended reported last may wait behind the news of its loss: to the machine it must
    /// not come after it.
    fn take_what_waits(&mut self) {
        for _ in 0..self.master.inputs.len() {
            if let Ok(input) = self.master.inputs.try_recv() {
                self.on_input(input);
            }
        }
    }

    pub(super) fn on_down(&mut self) {
        let Wire::Ending { since } = self.wire else { return };
        self.master.link.disconnected();
        // It has been confirmed, and the machine must not hear of it after the loss.
        while !self.put_aside.is_empty() {
            self.take_back();
        }
        self.event(Event::LinkDown);
        self.wire = Wire::Wanted { since, first: false };
        let now = Instant::now();
        if self.in_vain.is_hopeless(self.master.tuning.reconnect, now) {
            let cause = self.last_error.take().map(|error| error.about).unwrap_or_default();
            let told =
                format!("one connection after the other is lost before anything whole has passed: {cause}");
            let error = Error::new(Code::ConnectionLost, told);
            return self.stop(
                error.hint("what is durable stays: run the same command again when the path is better, or with a smaller --object-size if most files are small"),
            );
        }
        match self.in_vain.pause(now) {
            None => self.request(),
            Some(pause) => self.retry_at = Some(now + pause),
        }
    }
}
