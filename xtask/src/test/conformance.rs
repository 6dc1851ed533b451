//! Every rule about unix sockets, put to the kernel's and to ours; docs/conformance.md is the table in full.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Outcome, apart};

pub fn run() -> Result<Outcome> {
    let mut by_implementation = BTreeMap::<String, u64>::new();
    let outcome = apart::run(&["--package", "onecopy-conformance"], false, |line| {
        // Hundreds of answers that are right say little one by one: they are counted instead of shown.
        let right = line.strip_prefix("test ").and_then(|line| line.strip_suffix("... ok"));
        // A case's name has a dot, which a Rust test's cannot have.
        if let Some((case, implementation)) = right.and_then(|name| name.trim_end().rsplit_once("::"))
            && case.contains('.')
        {
            *by_implementation.entry(implementation.to_owned()).or_default() += 1;
        }
        right.is_none()
    });
    println!("answers as they should be, by implementation:");
    for (implementation, answers) in by_implementation {
        println!("   {implementation:20} {answers}");
    }
    outcome
}
