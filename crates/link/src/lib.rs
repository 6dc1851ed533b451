//! Where packets leave and arrive.
#![forbid(unsafe_code)]
