//! The planted bugs.
