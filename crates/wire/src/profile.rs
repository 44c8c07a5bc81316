//! Where an end's time went, in bytes. For the report only: any numbers are as good as any others.

use alloc::vec::Vec;

use haul_model::profile::{Buffers, Profile, Spent, Stage, Waiting};

use crate::bytes::{Malformed, Reader, put_varint};

/// Stages, or things that a master waits for, that a message may name. There is room for those of later versions.
const ITEMS_MAX: usize = 64;
const PERMILLE_MAX: u64 = 1000;

/// What is nothing is left out.
pub(crate) fn put_profile(out: &mut Vec<u8>, profile: &Profile) {
    put_varint(out, profile.wall_nanos);
    put_varint(out, profile.processor_nanos);
    put_varint(out, u64::from(profile.processors));
    put_varint(out, u64::from(profile.host_busy_permille).min(PERMILLE_MAX));
    let spent = || Stage::ALL.iter().filter(|stage| profile.spent(**stage) != Spent::default());
    put_varint(out, spent().count() as u64);
    for stage in spent() {
        let Spent { busy_nanos, processor_nanos, times, bytes } = profile.spent(*stage);
        put_varint(out, *stage as u64);
        [busy_nanos, processor_nanos, times, bytes].into_iter().for_each(|field| put_varint(out, field));
    }
    let waited = || Waiting::ALL.iter().filter(|waiting| profile.waited_nanos(**waiting) != 0);
    put_varint(out, waited().count() as u64);
    for waiting in waited() {
        put_varint(out, *waiting as u64);
        put_varint(out, profile.waited_nanos(*waiting));
    }
    let Buffers { slots_used, slots, slot_bytes } = profile.buffers;
    [slots_used, slots, slot_bytes].into_iter().for_each(|field| put_varint(out, u64::from(field)));
    out.push(u8::from(profile.round_trip_nanos.is_some()));
    profile.round_trip_nanos.into_iter().for_each(|nanos| put_varint(out, nanos));
}

/// Numbers that this version does not know are passed over.
pub(crate) fn profile(reader: &mut Reader<'_>) -> Result<Profile, Malformed> {
    let mut profile = Profile {
        wall_nanos: reader.varint()?,
        processor_nanos: reader.varint()?,
        processors: reader.u32()?,
        host_busy_permille: reader.bounded(PERMILLE_MAX)? as u16,
        ..Profile::default()
    };
    for _ in 0..reader.count(ITEMS_MAX)? {
        let number = reader.varint()?;
        let spent = Spent {
            busy_nanos: reader.varint()?,
            processor_nanos: reader.varint()?,
            times: reader.varint()?,
            bytes: reader.varint()?,
        };
        if let Some(stage) = usize::try_from(number).ok().and_then(|number| Stage::ALL.get(number)) {
            *profile.spent_mut(*stage) = spent;
        }
    }
    for _ in 0..reader.count(ITEMS_MAX)? {
        let (number, nanos) = (reader.varint()?, reader.varint()?);
        if let Some(waiting) = usize::try_from(number).ok().and_then(|number| Waiting::ALL.get(number)) {
            *profile.waited_nanos_mut(*waiting) = nanos;
        }
    }
    profile.buffers = Buffers { slots_used: reader.u32()?, slots: reader.u32()?, slot_bytes: reader.u32()? };
    profile.round_trip_nanos = match reader.bounded(1)? {
        0 => None,
        _ => Some(reader.varint()?),
    };
    Ok(profile)
}
