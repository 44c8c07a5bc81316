//! What the host is made of, how busy it is, and which thread of a transfer belongs on which CPU.
//!
//! [`Machine::read`] looks into `/sys` and `/proc` (or a copy of them), [`Load`] is what happened between two looks,
//! [`Map`] is what the user knows better, [`Plan::of`] decides, [`pin`] and [`zone`] carry it out. [`service`] does the first
//! four for several processes at once, so that they do not choose the same CPUs; [`Advice`] is its plan or one's own; [`Placer`] does all of it for the
//! threads of a transfer while that runs. After MDTM, the middleware of mdtmFTP.
//!
//! What must stay true: all of this is advice. A file that is missing, damaged or hostile costs knowledge, never a
//! transfer; everything read is bounded; and where nothing can be gained (one node, few CPUs, a busy or shared
//! machine) the plan is to leave it to the kernel. Planning is pure: the same machine, load and wishes give the same plan.

mod advice;
mod cpus;
mod devices;
mod limits;
mod links;
mod load;
mod machine;
mod map;
mod picture;
mod pin;
pub mod placer;
mod plan;
pub mod service;
mod tree;
pub mod zone;

pub use advice::{Advice, Asking};
pub use cpus::{CPUS_MAX, Cpus};
pub use devices::{Reached, of_path, of_peer};
pub use limits::{Limits, memory_available};
pub use load::{Counters, Load, NodeLoad};
pub use machine::{Cpu, Device, DeviceKind, L3, Machine, NODES_MAX, Node, Origin};
pub use map::{Map, MapError};
pub use picture::{Style, picture, summary, words};
pub use pin::{affinity, pin};
pub use placer::Placer;
pub use plan::{Placement, Plan, Seat, ThreadKind, Threads, Transfer};
