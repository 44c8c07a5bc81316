//! What tests of two ends in one process have in common.

use std::time::Duration;

use haul_model::{JobId, SessionId};
use haul_mover::connection::Connector;
use haul_mover::end::Common;
use haul_mover::scheduler::Adaptive;
use haul_mover::{Policy, Reports, Tuning};
use haul_topology::Placer;

/// Small, with so many slots of so many bytes.
pub fn tuning(slots: u32, object_bytes: u32) -> Tuning {
    Tuning {
        object_bytes,
        slots,
        slots_far: slots,
        io_threads: 2,
        io_threads_max: 2,
        hangs_after: None,
        policy: Policy::Adaptive(Adaptive::default()),
        bundle_bytes_max: object_bytes.into(),
        reconnect: Duration::from_secs(1),
        unattended: false,
        report_done: false,
        bandwidth: None,
    }
}

/// One SOURCE, whose name is `many`.
pub fn common(tuning: Tuning, connector: Box<dyn Connector>, reports: Reports) -> Common {
    Common {
        tuning,
        job: JobId([1; 16]),
        session: SessionId([2; 16]),
        epoch: 0,
        roots: vec![Box::from(&b"many"[..])],
        connector,
        reports,
        placer: Placer::default(),
    }
}
