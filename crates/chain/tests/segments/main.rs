//! Segments of chains as a stack holds them: copied bytes beside lent ones, cut by acknowledgements, sent again.
#![cfg(not(loom))]

mod places;
