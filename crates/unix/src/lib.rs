//! Room `unix`.
