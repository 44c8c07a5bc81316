//! Writing and reading the primitive values. Integers are little-endian or LEB128 varints in their shortest form.

use alloc::boxed::Box;
use alloc::vec::Vec;

use haul_model::{Code, Failure, Hash, Place, Timestamp};

/// The bytes are not what the specification says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Failure {
        Failure::new(Code::Protocol)
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Zigzag: small negative numbers stay short.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(crate) fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    put_signed(out, time.seconds);
    put_varint(out, u64::from(time.nanos));
}

pub(crate) fn put_failure(out: &mut Vec<u8>, failure: Failure) {
    put_varint(out, failure.code as u64);
    put_varint(out, failure.errno as u32 as u64);
}

/// A cursor over received bytes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes after the end of a message")) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        if count > self.rest.len() {
            return Err(Malformed("message is cut short"));
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 || shift > 0 && byte == 0 {
                return Err(Malformed("varint is not in its shortest form"));
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("varint is too long"))
    }

    /// A varint of at most `max`.
    pub(crate) fn bounded(&mut self, max: u64) -> Result<u64, Malformed> {
        let value = self.varint()?;
        if value <= max { Ok(value) } else { Err(Malformed("number is over its limit")) }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(self.bounded(u64::from(u32::MAX))? as u32)
    }

    /// A count of items that follow, each of at least one byte.
    pub(crate) fn count(&mut self, max: usize) -> Result<usize, Malformed> {
        let count = self.bounded(max as u64)? as usize;
        if count <= self.rest.len() { Ok(count) } else { Err(Malformed("count is over what follows")) }
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let count = self.bounded(max as u64)? as usize;
        self.take(count)
    }

    pub(crate) fn boxed(&mut self, max: usize) -> Result<Box<[u8]>, Malformed> {
        Ok(self.bytes(max)?.into())
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Malformed> {
        Ok(Timestamp { seconds: self.signed()?, nanos: self.bounded(999_999_999)? as u32 })
    }

    pub(crate) fn failure(&mut self) -> Result<Failure, Malformed> {
        let number = self.bounded(u64::from(u16::MAX))? as u16;
        let errno = self.u32()? as i32;
        // A row that only a newer version knows is still an error, and still the other end's.
        let code = Code::from_number(number).unwrap_or(Code::Internal);
        Ok(Failure { code, errno, place: Place::default() })
    }

    pub(crate) fn hash(&mut self) -> Result<Hash, Malformed> {
        Ok(Hash(self.array()?))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("flag is neither 0 nor 1")),
        }
    }
}
