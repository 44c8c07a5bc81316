//! mover
