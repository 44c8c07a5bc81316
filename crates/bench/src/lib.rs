//! Measures haul: starts its processes, injects faults, and writes down what came out.
//!
//! - [`process`], [`machine`]: a hand on every process that was started; what it ran on.
//! - [`sshd`], [`dataset`], [`tree`]: a host to log in to, something to move, and an independent look at the result.
//! - [`evaluation`], [`statistics`]: what the evaluations share; means, medians, and how far they can be trusted.
//! - [`peers`]: haul side by side with other movers, and with what this machine can do at all.
//! - [`congestion`]: what it is worth to know which targets are slow, the evaluation of LADS.
//! - [`faults`]: what the object logs cost and what a fault costs, the evaluation of FT-LADS.
//!
//! Called by `haul bench` and by the testbed. It knows haul only by its command line and its JSON events, so that what
//! is measured is what a user would see.

#![warn(missing_docs)]

pub mod congestion;
pub mod dataset;
pub mod evaluation;
pub mod faults;
pub mod machine;
pub mod peers;
pub mod process;
pub mod sshd;
pub mod statistics;
pub mod tree;
