//! What goes over the socket: a line of JSON for each request and for each answer.

use serde::{Deserialize, Serialize};

use crate::{Cpus, Load, Machine, Plan, Transfer};

/// Of the format.
pub const VERSION: u32 = 1;
/// Bytes of a request at most, with its end of line.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Devices that a request names at most.
pub const DEVICES_MAX: usize = 256;
/// Bytes of an answer at most: a machine with [`crate::CPUS_MAX`] CPUs.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// What a client wants.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What is the machine, how busy is it, which CPUs are leased?
    Machine {},
    /// Where do these threads belong?
    Plan {
        /// One end of a transfer.
        transfer: Transfer,
        /// Keep the CPUs of the plan from others until they are released, or the connection ends.
        #[serde(default)]
        lease: bool,
    },
    /// Give back what was leased.
    Release {
        /// The number that the plan came with.
        lease: u64,
    },
}

/// What the service says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Machine`].
    Machine {
        /// Of the format.
        version: u32,
        /// With the limits of the client's process.
        machine: Machine,
        /// Of the last second.
        load: Load,
        /// CPUs that clients have.
        leased: Cpus,
    },
    /// To [`Request::Plan`].
    Plan {
        /// Where threads belong.
        plan: Plan,
        /// To release it; none if nothing was leased.
        lease: Option<u64>,
    },
    /// To [`Request::Release`].
    Released {
        /// The CPUs that others may have now.
        cpus: Cpus,
    },
    /// The request cannot be answered.
    Error {
        /// Why, in words.
        reason: String,
    },
}
