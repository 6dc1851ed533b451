//! Memory that connections leave behind must be found, however little it is.

use std::process::Command;

#[test]
fn a_few_bytes_of_each_connection_are_missed() {
    let soak = Command::new(env!("CARGO_BIN_EXE_onecopy-soak"))
        .args([
            "--leaky",
            "--seconds",
            "24",
            "--connections",
            "60",
            "--workers",
            "2",
            "--kill-every",
            "1000000",
        ])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&soak.stderr).into_owned();
    assert!(!soak.status.success(), "{told}");
    let last = told.split("onecopy-soak: ").last().unwrap();
    assert!(last.contains("left in the survivor") && last.contains("pieces are allocated"), "{told}");
}
