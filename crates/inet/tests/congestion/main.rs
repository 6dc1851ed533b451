//! How a congestion window grows and shrinks: against the formulas of the RFCs, and against what Linux does in the same cases.

mod flow;

mod formulas;
mod hystart_plus_plus;
mod linux;
mod random;
mod reductions;
