//! objectlog
