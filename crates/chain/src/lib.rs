//! Chains of page fragments, and the notifications of sends without a copy.
