//! Room `conformance`.
