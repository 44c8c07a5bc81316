//! The sink half: files are written under temporary names below held directories, made durable, then named.
