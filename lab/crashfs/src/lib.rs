//! crashfs
