//! Room `sync`.
