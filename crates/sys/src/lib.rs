//! Room `sys`.
