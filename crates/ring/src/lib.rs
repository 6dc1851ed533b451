//! Room `ring`.
