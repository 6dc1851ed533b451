//! A wake-up that is lost must be found, and told with the state of both ends.

use std::process::Command;

#[test]
fn a_connection_that_nobody_serves_is_a_lost_wake_up() {
    let soak = Command::new(env!("CARGO_BIN_EXE_onecopy-soak"))
        .args([
            "--deaf",
            "--seconds",
            "200",
            "--connections",
            "8",
            "--workers",
            "1",
            "--kill-every",
            "1000000",
        ])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&soak.stderr).into_owned();
    assert!(!soak.status.success(), "{told}");
    // The cause, and not what follows from it.
    let last = told.split("onecopy-soak: ").last().unwrap();
    assert!(last.contains("a wake-up was lost"), "{told}");
    // What both ends are at: poll, that there was something to be had, and of rings (which a connection that is just beginning
    // has not) positions and doorbells.
    let rings = ["head:", "armed:", "parked:", "debt:"];
    let rings = if last.contains("shared memory: true") { &rings[..] } else { &[] };
    for part in ["this end:", "the peer:", "poll says", "a look for bytes now"].iter().chain(rings) {
        assert!(last.contains(part), "{part:?} is missing in: {told}");
    }
}
