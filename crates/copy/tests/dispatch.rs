//! Forcing a kernel: by the API and by the environment. Each case is a process of its own, since the choice is one
//! per process: the test runs itself again.

use onecopy_copy::{Hint, Kernel, KernelError, Store, copy, force, status};
use std::process::Command;

/// Runs the ignored test `name` of this file in a process with `variables` and gives what it printed.
fn child(name: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
#[ignore = "run by the tests below"]
fn print_status() {
    let mut dst = [0; 5000];
    assert_eq!(copy(&mut dst, &[7; 5000], Hint::CACHED), Store::Cached);
    assert_eq!(dst, [7; 5000]);
    println!("{:?}", status());
}

#[test]
fn the_environment_forces_each_kernel() {
    for kernel in Kernel::all() {
        let name = kernel.name();
        let text = child("print_status", &[("ONECOPY_COPY", name), ("ONECOPY_TUNE", "off")]);
        assert!(
            text.contains(&format!(
                "cached: {name:?}, long: {name:?}, long_from: 18446744073709551615, stream: {name:?}"
            )),
            "{text}"
        );
        assert!(text.contains("notes: []"), "{text}");
    }
}

#[test]
fn an_unknown_name_is_reported_not_obeyed() {
    let text = child("print_status", &[("ONECOPY_COPY", "mmx"), ("ONECOPY_TUNE", "off")]);
    assert!(text.contains("there is no copy kernel \\\"mmx\\\"; use one of: generic"), "{text}");
}

#[test]
#[cfg(feature = "profile")]
fn a_broken_profile_is_reported_not_obeyed() {
    let folder = std::env::temp_dir().join(format!("onecopy-dispatch-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("onecopy")).unwrap();
    let path = folder.join("onecopy/tune.toml");
    for (content, complaint) in [
        (
            "version = 1\nmachine = \"abacus\"\nmeasured = 0\nkernels = { cached = \"generic\", long = \"generic\", long_from = 1, stream = \"generic\" }\n",
            "it was measured on",
        ),
        ("version = 99\n", "it has version 99"),
        ("version = ", "measure again with `onecopy tune`"),
    ] {
        std::fs::write(&path, content).unwrap();
        let text = child("print_status", &[("XDG_CONFIG_HOME", folder.to_str().unwrap())]);
        assert!(text.contains(complaint), "{text}");
        assert!(text.contains("thresholds: \"formula"), "{text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_api_forces_and_lets_go() {
    for kernel in Kernel::all() {
        force(Some(kernel));
        assert_eq!((status().cached, status().stream), (kernel.name(), kernel.name()));
        let mut dst = [0; 5000];
        let expected = if kernel.streams() { Store::NonTemporal } else { Store::Cached };
        assert_eq!(copy(&mut dst, &[7; 5000], Hint::NON_TEMPORAL), expected);
        assert_eq!(dst, [7; 5000]);
    }
    force(None);
    assert_eq!(Kernel::by_name("abacus").unwrap_err(), KernelError::Unknown("abacus".to_owned()));
}
