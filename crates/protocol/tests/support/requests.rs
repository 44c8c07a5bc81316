//! Objects of the scheduler, pushed and picked.

use haul_protocol::scheduler::{Class, Picked, Request, Scheduler, TargetId};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;
pub const MIB: u32 = 1 << 20;

pub fn object(item: u64, target: u32) -> Request<u64> {
    Request { item, target: TargetId(target), gate: None, class: Class::Object, bytes: MIB }
}

pub fn push_all(scheduler: &mut Scheduler<u64>, requests: impl IntoIterator<Item = Request<u64>>) {
    requests.into_iter().for_each(|request| scheduler.push(request, 0).unwrap());
}

pub fn pick_all(scheduler: &mut Scheduler<u64>, threads: usize, now: u64) -> Vec<Picked<u64>> {
    (0..threads).map_while(|_| scheduler.pick(now)).collect()
}
