//! What the page says of the laboratory, for each parallel file system.

use super::{System, TARGETS};

/// The heading of the page.
pub(super) const fn title(system: System) -> &'static str {
    match system {
        System::Stripefs => "# What it is worth to know which targets are slow\n",
        System::Gluster => "# What it is worth on GlusterFS to know which bricks are slow\n",
        System::Ceph => "# What it is worth on CephFS to know which OSDs are slow\n",
    }
}

/// What is slow, what is not, and what keeps a figure from meaning more than it says.
pub(super) fn laboratory(system: System) -> String {
    let mebibytes = system.file_bytes() >> 20;
    match system {
        System::Stripefs => format!(
            "The evaluation of LADS, run with haul: {TARGETS} storage targets at an end, files on four of them each, and some \
             targets ten times slower than the others, always the same ones or others every few seconds. A target is XFS on a \
             device in memory that the kernel's I/O throttle slows; an emulated parallel file system (lab/stripefs) stripes files \
             over them, past the page cache. {ENDS}; with `both`, both ends are parallel file systems with slow targets \
             of their own. {ROUNDS}"
        ),
        System::Gluster => format!(
            "{REALLY_ONE}: a GlusterFS volume that distributes whole files of {mebibytes} MiB over {TARGETS} bricks, {SOME_SLOW} A \
             brick is XFS on a device in memory that the kernel's I/O throttle slows; it writes through the page cache, so who makes \
             nothing durable is done before the device is. Everything (bricks, client, mover) runs on this machine. {ENDS}. {ROUNDS}\n\n\
             Where a file lies is decided by the hash of its name: how evenly bricks are filled is the volume's doing and nobody's \
             choice here. {OWN_BOUND} on each brick. {ON_DEVICES}, also where the mover did not wait for that (`cp` and `rsync`); \
             before one that reads nothing of the files is in a page cache. The client's own caches of contents \
             (`performance.io-cache`, `performance.quick-read`) are off; everything else is as GlusterFS comes. {NO_REQUESTS}"
        ),
        System::Ceph => format!(
            "{REALLY_ONE}: a CephFS whose files of {mebibytes} MiB are cut into objects of 4 MiB, one copy of each, on {TARGETS} OSDs \
             (BlueStore), {SOME_SLOW} An OSD keeps its objects in a file of an XFS on a device in memory that the kernel's I/O throttle \
             slows; it reads and writes it past the page cache. Names (the metadata pool) are on one more OSD, which is never slow, as \
             where they are on flash. Everything (monitor, metadata server, OSDs, `ceph-fuse`, mover) runs on this machine. {ENDS}. \
             {ROUNDS}\n\n\
             Where an object lies is decided by the hash of its name, which is made of the number of its file: how evenly OSDs are \
             filled is the cluster's doing and nobody's choice here, and differs from run to run where files are written (new files have \
             numbers of their own). {OWN_BOUND} on each OSD (`ceph osd map`). haul finds the OSD of \
             each object by itself (once for a run, in the time that is measured). {ON_DEVICES}. Neither the client nor OSDs keep \
             contents (`client_oc`, `bluestore_default_buffered_read` are off, and with the former every write of the client waits for \
             its OSD); small writes are not logged first (`bluestore_prefer_deferred_size` is 0), and OSDs have caches of 16 MiB for what \
             they know of objects. There are 512 placement groups, and everything else is as Ceph comes. OSDs write about a tenth \
             more than the files (776 MiB were seen at the devices in a run of 704 MiB): what they know of objects, and the log of XFS. The \
             bound knows nothing of that, so a run that writes can have 0.91 of it at most. {NO_REQUESTS}"
        ),
    }
}

const REALLY_ONE: &str = "The evaluation of LADS, run with haul on a file system that really is one";
const SOME_SLOW: &str =
    "some of them ten times slower than the others, always the same ones or others every few seconds.";
const ENDS: &str = "The other end is no file system (contents are computed, or checked and forgotten), so that it cannot be the \
                    bound";
const ROUNDS: &str = "All movers of a round of one command meet the same weather, and its runs are in an order drawn by lot. Where this page is of several \
     commands (below), what they measured was not measured side by side, nor on one machine for sure: such figures are no pairs.";
const OWN_BOUND: &str = "Each run is compared with a bound of its own, made of the bytes that really are";
const ON_DEVICES: &str = "A run that writes ends when everything is on the devices";
const NO_REQUESTS: &str = "It tells of no requests, so nothing is said of these; when a target had moved its bytes is seen at its device, every 50 ms.";
