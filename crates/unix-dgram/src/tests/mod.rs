//! White-box tests.

mod between;
mod forks;
mod hostile;
mod hostile_many;
mod hostile_proofs;
pub mod lane_tests;
mod moments;
mod rooms;
