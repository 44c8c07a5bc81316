//! TLS 1.3 records (RFC 8446, section 5) on the bulk path, one half for each direction.
//!
//! The halves share nothing but the key schedule, which they ask once in 2^24 records, so two threads never wait for
//! each other. A payload is encrypted straight from the caller's slice into an output buffer of many records that
//! leaves in one call, and decrypted straight from an input buffer of many records into the caller's slice.
//!
//! What must stay true: a nonce is used once (the sequence number only grows, and a new key starts it again); nothing
//! is believed before its tag was verified; after any failure a half does nothing any more.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use haul_meter::within;
use haul_model::profile::Stage;
use rustls::kernel::KernelConnection;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error, HandshakeType};

use super::handshake::{Agreed, Traffic};
use super::{alerted, local};
use crate::gate::lock;
use crate::{About, Cause, Closer, Receiver, See, Sender, Stream};

#[cfg(test)]
mod tests;

pub(super) const RECORD_HEADER_BYTES: usize = 5;
/// Plaintext of one record (RFC 8446, 5.1).
const PLAIN_BYTES_MAX: usize = 1 << 14;
const TAG_BYTES: usize = 16;
/// Behind the plaintext: the true content type, then the tag.
const TRAILER_BYTES: usize = 1 + TAG_BYTES;
/// A whole record that this end makes.
const RECORD_BYTES: usize = RECORD_HEADER_BYTES + PLAIN_BYTES_MAX + TRAILER_BYTES;
/// A whole record that any end may make (RFC 8446, 5.2).
pub(super) const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + PLAIN_BYTES_MAX + 256;

/// Records that leave in one call of the layer below: large enough that the call costs little, small enough that it all
/// stays in the L2 cache.
const OUTPUT_RECORDS: usize = 32;
/// A key update takes a record of its own in front of the one that it was needed for.
const OUTPUT_BYTES: usize = OUTPUT_RECORDS * RECORD_BYTES + KEY_UPDATE_RECORD_BYTES;
const KEY_UPDATE_RECORD_BYTES: usize = RECORD_HEADER_BYTES + KEY_UPDATE.len() + TRAILER_BYTES;
/// Read from the layer below in one call.
const INPUT_BYTES: usize = 512 << 10;

/// Bytes of a file that are read, seen, encrypted and sent at a time: they are still in the core's second cache when they are
/// encrypted, and so is what they were read to.
const PASSAGE_BYTES: usize = 64 << 10;

/// Records under one key. AES-GCM loses its margin beyond 2^24.5 full ones (RFC 8446, 5.5); the last is the key update.
const RECORDS_PER_KEY: u64 = (1 << 24) - 1;

/// Key updates without data in between: each costs this end more than the peer.
const IDLE_UPDATES_MAX: u8 = 8;

/// A KeyUpdate message that asks for none in return (RFC 8446, 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

type Secrets = (u64, ConnectionTrafficSecrets);

/// Where the next keys come from: rustls, which keeps the traffic secrets.
pub(super) trait Schedule: Send {
    fn next_sending(&mut self) -> Result<Secrets, Error>;
    fn next_receiving(&mut self) -> Result<Secrets, Error>;
}

impl<D: Send> Schedule for KernelConnection<D> {
    fn next_sending(&mut self) -> Result<Secrets, Error> {
        self.update_tx_secret()
    }

    fn next_receiving(&mut self) -> Result<Secrets, Error> {
        self.update_rx_secret()
    }
}

struct Shared {
    schedule: Mutex<Box<dyn Schedule>>,
    /// The peer has asked for a key update of the sending direction.
    update_wanted: AtomicBool,
}

/// Puts records around what passes through the stream.
pub(super) fn protect(agreed: Agreed) -> io::Result<Stream> {
    let about = About { cipher: agreed.traffic.cipher, ..agreed.stream.about };
    let (closer, arrivals) = (agreed.stream.closer(), agreed.stream.arrivals());
    let (sender, receiver) = halves(agreed)?;
    Ok(Stream::new(Box::new(sender), Box::new(receiver), closer, about).with_arrivals(arrivals))
}

fn halves(agreed: Agreed) -> io::Result<(RecordSender, RecordReceiver)> {
    let Agreed { stream, traffic: Traffic { secrets, schedule, .. }, received } = agreed;
    let shared = Arc::new(Shared { schedule: Mutex::new(schedule), update_wanted: AtomicBool::new(false) });
    let mut input = vec![0; INPUT_BYTES];
    input[..received.len()].copy_from_slice(&received);
    let sender = RecordSender {
        lower: stream.sender,
        keys: Keys::new(secrets.tx)?,
        shared: shared.clone(),
        records_per_key: RECORDS_PER_KEY,
        records_left: RECORDS_PER_KEY,
        output: vec![0; OUTPUT_BYTES],
        used: 0,
        passage: Vec::new(),
        finished: false,
        failed: None,
    };
    let receiver = RecordReceiver {
        lower: stream.receiver,
        closer: stream.closer,
        keys: Keys::new(secrets.rx)?,
        shared,
        input,
        pending: 0..received.len(),
        opened: 0..0,
        idle_updates: 0,
        ended: false,
        failed: None,
        timeout: None,
        until: None,
    };
    Ok((sender, receiver))
}

/// The keys of one direction.
struct Keys {
    key: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    sequence: u64,
}

impl Keys {
    fn new((sequence, secrets): Secrets) -> io::Result<Self> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&aead::CHACHA20_POLY1305, key, iv),
            _ => return Err(local(Error::General("a cipher suite outside the profile".into()))),
        };
        let key = UnboundKey::new(algorithm, key.as_ref())
            .map_err(|_| local(Error::General("a key of the wrong length".into())))?;
        let iv = iv.as_ref().try_into().expect("the suites of TLS 1.3 have 96-bit nonces");
        Ok(Keys { key: LessSafeKey::new(key), iv, sequence })
    }

    /// The nonce of the next record (RFC 8446, 5.3).
    fn nonce(&mut self) -> io::Result<Nonce> {
        let sequence = self.sequence;
        self.sequence =
            sequence.checked_add(1).ok_or_else(|| Cause::Excess.error("too many records under one key"))?;
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(sequence.to_be_bytes()).for_each(|(byte, mask)| *byte ^= mask);
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// The header of a record that holds `body` bytes; it is also the additional authenticated data.
fn header(body: usize) -> [u8; RECORD_HEADER_BYTES] {
    let [high, low] = u16::try_from(body).expect("a record is below 64 KiB").to_be_bytes();
    [u8::from(ContentType::ApplicationData), 3, 3, high, low]
}

struct RecordSender {
    lower: Box<dyn Sender>,
    keys: Keys,
    shared: Arc<Shared>,
    records_per_key: u64,
    records_left: u64,
    /// Whole records that have not left yet: the first `used` bytes.
    output: Vec<u8>,
    used: usize,
    /// What bytes of files pass through; empty until there are some.
    passage: Vec<u8>,
    finished: bool,
    failed: Option<Cause>,
}

/// Where the plaintext of a record is.
enum Plain<'a> {
    /// In the caller's memory.
    At(&'a [u8]),
    /// In the output buffer already, where the record's ciphertext goes; this many bytes.
    Gathered(usize),
}

impl RecordSender {
    /// Appends one record to the output, which must have room.
    fn seal(&mut self, kind: ContentType, plain: Plain<'_>) -> io::Result<()> {
        let length = match plain {
            Plain::At(plain) => plain.len(),
            Plain::Gathered(length) => length,
        };
        let nonce = self.keys.nonce()?;
        let header = header(length + TRAILER_BYTES);
        let record = &mut self.output[self.used..][..RECORD_HEADER_BYTES + length + TRAILER_BYTES];
        let (head, body) = record.split_at_mut(RECORD_HEADER_BYTES);
        head.copy_from_slice(&header);
        let (body, trailer) = body.split_at_mut(length);
        let kind = [u8::from(kind)];
        let key = &self.keys.key;
        match plain {
            Plain::At(plain) => {
                key.seal_out_of_place_scatter(nonce, Aad::from(header), plain, body, &kind, trailer)
            }
            Plain::Gathered(_) => key.seal_in_place_scatter(nonce, Aad::from(header), body, &kind, trailer),
        }
        .map_err(|_| local(Error::EncryptError))?;
        self.used += RECORD_HEADER_BYTES + length + TRAILER_BYTES;
        Ok(())
    }

    /// Makes room for a record, and a new key if the old one has served long enough or the peer wants one.
    fn prepare(&mut self) -> io::Result<()> {
        if self.used + KEY_UPDATE_RECORD_BYTES + RECORD_BYTES > self.output.len() {
            self.flush()?;
        }
        let wanted = self.shared.update_wanted.load(Ordering::Relaxed)
            && self.shared.update_wanted.swap(false, Ordering::Relaxed);
        if self.records_left == 0 || wanted {
            self.seal(ContentType::Handshake, Plain::At(&KEY_UPDATE))?;
            self.keys = Keys::new(lock(&self.shared.schedule).next_sending().map_err(local)?)?;
            self.records_left = self.records_per_key;
        }
        self.records_left -= 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let used = std::mem::take(&mut self.used);
        let _send = within(Stage::Send).bytes(used as u64);
        self.lower.send(&[IoSlice::new(&self.output[..used])])
    }

    fn send_records(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.seal_all(parts)?;
        if self.used > 0 { self.flush() } else { Ok(()) }
    }

    /// Makes records of all parts; those that the output has no room for any more leave.
    fn seal_all(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut parts = parts.iter().map(|part| &part[..]).filter(|part| !part.is_empty()).peekable();
        let mut rest = parts.next();
        while let Some(part) = rest {
            self.prepare()?;
            // A part that fills a record is encrypted where it lies, and so is one that has nothing to share a record
            // with; a header in front of a large payload gets its own record, which keeps the payload's records whole.
            let alone = part.len() >= PLAIN_BYTES_MAX
                || parts.peek().is_none_or(|next| next.len() >= PLAIN_BYTES_MAX);
            if alone {
                let (now, later) = part.split_at(part.len().min(PLAIN_BYTES_MAX));
                self.seal(ContentType::ApplicationData, Plain::At(now))?;
                rest = if later.is_empty() { parts.next() } else { Some(later) };
                continue;
            }
            let mut gathered = 0;
            while let Some(part) = rest
                && gathered < PLAIN_BYTES_MAX
                && part.len() < PLAIN_BYTES_MAX
            {
                let (now, later) = part.split_at(part.len().min(PLAIN_BYTES_MAX - gathered));
                self.output[self.used + RECORD_HEADER_BYTES + gathered..][..now.len()].copy_from_slice(now);
                gathered += now.len();
                rest = if later.is_empty() { parts.next() } else { Some(later) };
            }
            self.seal(ContentType::ApplicationData, Plain::Gathered(gathered))?;
        }
        Ok(())
    }

    fn pass_records(
        &mut self,
        head: &[u8],
        file: BorrowedFd<'_>,
        (offset, length): (u64, usize),
        mut see: Option<See<'_>>,
    ) -> io::Result<()> {
        self.seal_all(&[IoSlice::new(head)])?;
        let mut passage = std::mem::take(&mut self.passage);
        passage.resize(PASSAGE_BYTES, 0);
        let mut done = 0;
        while done < length {
            let piece = &mut passage[..PASSAGE_BYTES.min(length - done)];
            {
                let _read = within(Stage::Read);
                crate::read_or_zero(file, offset + done as u64, piece)?;
            }
            done += piece.len();
            if let Some(see) = &mut see {
                see(piece);
            }
            self.seal_all(&[IoSlice::new(piece)])?;
        }
        self.passage = passage;
        if self.used == 0 { Ok(()) } else { self.flush() }
    }

    fn checked(&mut self, action: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        match self.failed {
            Some(cause) => Err(cause.error("sending on a stream that has failed")),
            None => action(self).inspect_err(|error| self.failed = Some(crate::cause(error))),
        }
    }
}

impl Sender for RecordSender {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.finished {
            return Err(Cause::Lost.error("sending on a direction that has ended"));
        }
        self.checked(|sender| sender.send_records(parts))
    }

    /// Through the core's cache, where the bytes stay until they are encrypted.
    fn send_file(
        &mut self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        room: &mut [u8],
        see: Option<See<'_>>,
    ) -> io::Result<()> {
        if self.finished {
            return Err(Cause::Lost.error("sending on a direction that has ended"));
        }
        self.checked(|sender| sender.pass_records(head, file, (offset, room.len()), see))
    }

    fn finish(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.checked(|sender| {
            sender.prepare()?;
            sender.seal(ContentType::Alert, Plain::At(&CLOSE_NOTIFY))?;
            sender.flush()?;
            sender.lower.finish()
        })
    }
}

struct RecordReceiver {
    lower: Box<dyn Receiver>,
    closer: Closer,
    keys: Keys,
    shared: Arc<Shared>,
    input: Vec<u8>,
    /// Of the input: received, not opened.
    pending: Range<usize>,
    /// Of the input: opened in place, not yet given to the caller. Always in front of `pending`.
    opened: Range<usize>,
    /// Key updates since the last data.
    idle_updates: u8,
    /// The peer's close_notify came.
    ended: bool,
    failed: Option<Cause>,
    timeout: Option<Duration>,
    /// When the call that is under way must have brought something, however many parts a record comes in.
    until: Option<Instant>,
}

impl RecordReceiver {
    /// Reads until `count` bytes are pending; false if the connection ends first. Nothing may be left in `opened`.
    fn read(&mut self, count: usize) -> io::Result<bool> {
        while self.pending.len() < count {
            // What is left of a record goes to the front, so that each read has nearly the whole buffer.
            self.input.copy_within(self.pending.clone(), 0);
            self.pending = 0..self.pending.len();
            if let Some(until) = self.until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Cause::Silent.error("a TLS record did not come as a whole in time"));
                }
                self.lower.set_timeout(Some(left))?;
            }
            let receive = within(Stage::Receive);
            let received = self.lower.receive_some(&mut self.input[self.pending.end..])?;
            drop(receive.bytes(received as u64));
            match received {
                0 => return Ok(false),
                received => self.pending.end += received,
            }
        }
        Ok(true)
    }

    /// The next whole record: where its body is in the input.
    fn next_record(&mut self) -> io::Result<(Range<usize>, [u8; RECORD_HEADER_BYTES])> {
        let truncated = || Cause::Truncated.error("the connection ended without a TLS close_notify");
        if !self.read(RECORD_HEADER_BYTES)? {
            return Err(truncated());
        }
        let header: [u8; RECORD_HEADER_BYTES] =
            *self.input[self.pending.clone()].first_chunk().expect("a header was read");
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != u8::from(ContentType::ApplicationData) || length < TRAILER_BYTES {
            return Err(Cause::Malformed.error("what came is not a protected TLS record"));
        }
        if length > PLAIN_BYTES_MAX + TRAILER_BYTES {
            return Err(Cause::Excess.error("a TLS record is longer than its plaintext can be"));
        }
        if !self.read(RECORD_HEADER_BYTES + length)? {
            return Err(truncated());
        }
        let body =
            self.pending.start + RECORD_HEADER_BYTES..self.pending.start + RECORD_HEADER_BYTES + length;
        self.pending.start = body.end;
        Ok((body, header))
    }

    fn receive_plain(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.opened.is_empty() {
                let count = into.len().min(self.opened.len());
                into[..count].copy_from_slice(&self.input[self.opened.clone()][..count]);
                self.opened.start += count;
                return Ok(count);
            }
            if self.ended {
                return Ok(0);
            }
            let (body, header) = self.next_record()?;
            let nonce = self.keys.nonce()?;
            let altered = |_| Cause::Altered.error("a TLS record came with other bytes than were sent");
            let inner = body.start..body.end - TAG_BYTES;
            if let Some(space) = into.get_mut(..inner.len()) {
                let (text, tag) = (&self.input[inner], &self.input[body.end - TAG_BYTES..body.end]);
                let key = &self.keys.key;
                key.open_separate_gather(nonce, Aad::from(header), text, tag, space).map_err(altered)?;
                let (length, kind) = content(space)?;
                if kind == ContentType::ApplicationData {
                    self.data(length)?;
                    return Ok(length);
                }
                // Control content is short; a longer one is refused by its length.
                let mut copy = [0; 8];
                let length = length.min(copy.len());
                copy[..length].copy_from_slice(&space[..length]);
                self.control(kind, &copy[..length])?;
            } else {
                let text = &mut self.input[body];
                self.keys.key.open_in_place(nonce, Aad::from(header), text).map_err(altered)?;
                let (length, kind) = content(&self.input[inner.clone()])?;
                let plain = inner.start..inner.start + length;
                if kind == ContentType::ApplicationData {
                    self.data(length)?;
                    self.opened = plain;
                } else {
                    let mut copy = [0; 8];
                    let length = length.min(copy.len());
                    copy[..length].copy_from_slice(&self.input[plain][..length]);
                    self.control(kind, &copy[..length])?;
                }
            }
        }
    }

    /// Empty data records carry nothing; a peer could keep this end busy with them.
    fn data(&mut self, length: usize) -> io::Result<()> {
        self.idle_updates = 0;
        match length {
            0 => Err(Cause::Malformed.error("an empty TLS record")),
            _ => Ok(()),
        }
    }

    fn control(&mut self, kind: ContentType, content: &[u8]) -> io::Result<()> {
        match (kind, content) {
            (ContentType::Alert, [_, description]) => match AlertDescription::from(*description) {
                AlertDescription::CloseNotify => {
                    self.ended = true;
                    Ok(())
                }
                description => Err(alerted(description)),
            },
            (ContentType::Handshake, message) if message == KEY_UPDATE || message == KEY_UPDATE_REQUESTED => {
                self.idle_updates += 1;
                if self.idle_updates > IDLE_UPDATES_MAX {
                    return Err(Cause::Excess.error("TLS keys are updated and not used"));
                }
                self.keys = Keys::new(lock(&self.shared.schedule).next_receiving().map_err(local)?)?;
                if message == KEY_UPDATE_REQUESTED {
                    self.shared.update_wanted.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            (ContentType::Handshake, [kind, ..]) => {
                let kind = HandshakeType::from(*kind);
                Err(Cause::Malformed.error(format!("a TLS message outside the profile: {kind:?}")))
            }
            _ => Err(Cause::Malformed.error(format!("a TLS record outside the profile: {kind:?}"))),
        }
    }
}

/// Splits an opened record (RFC 8446, 5.4): how long its content is, and of what type. Zeros behind the type are padding.
fn content(inner: &[u8]) -> io::Result<(usize, ContentType)> {
    match inner.iter().rposition(|byte| *byte != 0) {
        Some(position) => Ok((position, ContentType::from(inner[position]))),
        None => Err(Cause::Malformed.error("a TLS record of padding only")),
    }
}

impl Receiver for RecordReceiver {
    fn receive_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "an empty receive cannot be told from the clean end");
        if let Some(cause) = self.failed {
            return Err(cause.error("receiving on a stream that has failed"));
        }
        self.until = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.receive_plain(into).inspect_err(|error| match crate::cause(error) {
            // Nothing of the record is lost: it may be waited for again.
            Cause::Silent => {}
            cause => {
                self.failed = Some(cause);
                // The peer must not go on sending into a stream that is not believed any more.
                self.closer.close();
            }
        })
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeout = timeout;
        self.lower.set_timeout(timeout)
    }
}
