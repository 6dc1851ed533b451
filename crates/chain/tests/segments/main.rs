//! Segments of chains as a stack holds them: copied bytes beside lent ones of every kind of memory, cut by acknowledgements, sent again.
#![cfg(not(loom))]

#[path = "../kinds/memory.rs"]
mod memory;
mod places;
mod program;
mod queue;
mod world;

use proptest::prelude::*;
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn a_queue_is_what_a_vector_would_be_and_each_send_is_told_once(
        steps in prop::collection::vec(program::step(), 1..80),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.end();
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256)
}
