//! How the source of a file is striped, in NEW_FILE.

use alloc::vec::Vec;

use haul_model::limits::{PLAN_PARTS_MAX, STRIPES_MAX};
use haul_model::stripe::{Count, Part, Plan, Pool, Where};

use crate::bytes::{Malformed, Reader, put_bytes, put_varint};

/// Bytes of the name of a pool.
const POOL_BYTES_MAX: usize = 15;

/// No part: no plan.
pub(crate) fn put_plan(out: &mut Vec<u8>, plan: Option<&Plan>) {
    let parts = plan.map_or(&[][..], Plan::parts);
    put_varint(out, parts.len() as u64);
    for Part { end, place, count, stripe_size, pool } in parts {
        // No part ends at 0, so that is the end of the file.
        put_varint(out, if *end == u64::MAX { 0 } else { *end });
        out.push(match place {
            Where::Targets => 0,
            Where::TargetsRepeated => 1,
            Where::Metadata => 2,
        });
        put_varint(
            out,
            match count {
                Count::Default => 0,
                Count::Exactly(count) => u64::from(*count),
                Count::All => u64::from(STRIPES_MAX) + 1,
            },
        );
        put_varint(out, u64::from(*stripe_size));
        put_bytes(out, pool.as_ref().map_or("", Pool::as_str).as_bytes());
    }
}

pub(crate) fn plan(reader: &mut Reader<'_>) -> Result<Option<Plan>, Malformed> {
    let count = reader.count(PLAN_PARTS_MAX)?;
    if count == 0 {
        return Ok(None);
    }
    let parts = (0..count).map(|_| part(reader)).collect::<Result<_, _>>()?;
    Plan::new(parts).map(Some).ok_or(Malformed("not a plan of stripes"))
}

fn part(reader: &mut Reader<'_>) -> Result<Part, Malformed> {
    let end = match reader.bounded(u64::MAX - 1)? {
        0 => u64::MAX,
        end => end,
    };
    let place = match reader.u8()? {
        0 => Where::Targets,
        1 => Where::TargetsRepeated,
        2 => Where::Metadata,
        _ => return Err(Malformed("stripes lie nowhere")),
    };
    let count = match reader.bounded(u64::from(STRIPES_MAX) + 1)? as u16 {
        0 => Count::Default,
        count @ 1..=STRIPES_MAX => Count::Exactly(count),
        _ => Count::All,
    };
    let stripe_size = reader.u32()?;
    let pool = match reader.bytes(POOL_BYTES_MAX)? {
        b"" => None,
        name => {
            let name = core::str::from_utf8(name).ok().and_then(Pool::new);
            Some(name.ok_or(Malformed("not the name of a pool"))?)
        }
    };
    Ok(Part { end, place, count, stripe_size, pool })
}
