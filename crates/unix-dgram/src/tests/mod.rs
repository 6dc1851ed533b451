//! White-box tests.

mod between;
mod hostile;
mod hostile_many;
mod hostile_signs;
pub mod lane_tests;
mod moments;
