//! The program as a person meets it: help, exit codes, colours, one-line errors, `doctor`.

use std::io::Read;
use std::process::{Command, Output, Stdio};

fn onecopy(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onecopy"))
        .args(args)
        .stdin(Stdio::null())
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn doctor_tells_the_machine_as_json() {
    let out = onecopy(&["doctor", "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    // Held against what the test itself can see of the machine.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(report["machine"]["kernel"], release.trim());
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(report["machine"]["cpu"]["allowed"], cpus);
    assert_eq!(report["machine"]["architecture"], std::env::consts::ARCH);
    let probes = [
        "memfd_seals",
        "memfd_noexec",
        "upgrade",
        "datagrams",
        "references",
        "io_uring",
        "kernel_tcp",
        "device_memory",
        "tap",
        "xdp",
        "cuda",
    ];
    for probe in probes {
        let probe = &report["probes"][probe];
        assert!(probe["works"].is_boolean() && !probe["detail"].as_str().unwrap().is_empty(), "{probe}");
    }
    let kernels = report["copy"]["kernels"].as_array().unwrap();
    assert!(kernels.iter().any(|kernel| kernel["name"] == report["copy"]["cached"]), "{kernels:?}");
    let features = report["features"].as_array().unwrap();
    assert!(features.iter().any(|feature| feature["name"] == "unix streams"));
    for feature in features {
        let told = feature["why"].is_string() && feature["remedy"].is_string();
        assert_eq!(feature["best"], !told, "{feature}");
    }
}

#[test]
fn doctor_sees_its_own_limits() {
    // One CPU and 512 descriptors: both have to be noticed.
    let out = Command::new("sh")
        .args(["-c", "ulimit -n 512 && exec taskset -c \"$1\" \"$0\" doctor --json"])
        .args([env!("CARGO_BIN_EXE_onecopy"), &first_allowed_cpu()])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["machine"]["limits"]["open_files"], 512);
    assert_eq!(report["machine"]["cpu"]["allowed"], 1);
    for feature in report["features"].as_array().unwrap() {
        if feature["name"] == "waiting" || feature["name"] == "many connections" {
            assert_eq!(feature["best"], false, "{feature}");
        }
    }
}

/// A container profile that forbids memfd_create, and a limit on file sizes: shared memory cannot be had, streams work.
#[test]
fn doctor_notices_that_shared_memory_is_refused() {
    let filtered = std::thread::spawn(|| {
        use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
        let deny = SeccompAction::Errno(libc::EPERM as u32);
        let rules = [(libc::SYS_memfd_create, vec![])].into_iter().collect();
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, deny, arch).unwrap();
        // On this thread only, and on the process that it starts.
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        onecopy(&["doctor", "--json"])
    });
    let limited = Command::new("sh")
        .args(["-c", "ulimit -f 0 && exec \"$0\" doctor --json", env!("CARGO_BIN_EXE_onecopy")])
        .output()
        .unwrap();
    for out in [filtered.join().unwrap(), limited] {
        assert!(out.status.success(), "{:?} {}", out.status, text(&out.stderr));
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["probes"]["memfd_seals"]["works"], false);
        assert_eq!(report["probes"]["upgrade"]["detail"], "sending went over Kernel, receiving over Kernel");
        let features = report["features"].as_array().unwrap();
        let streams = features.iter().find(|feature| feature["name"] == "unix streams").unwrap();
        assert_eq!(streams["best"], false, "{streams}");
        for feature in features {
            if feature["name"] == "datagrams" || feature["name"] == "pages by reference" {
                assert_eq!(feature["best"], false, "{feature}");
                assert_eq!(feature["remedy"], "what helps unix streams helps these");
            }
        }
    }
}

#[test]
fn doctor_tells_what_the_environment_forces() {
    for (kernel, told) in [("generic", "forces"), ("abacus", "cannot be had")] {
        let out = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["doctor", "--json"])
            .env("ONECOPY_COPY", kernel)
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let features = report["features"].as_array().unwrap();
        let copies = features.iter().find(|feature| feature["name"] == "copies").unwrap();
        assert_eq!(copies["best"], false);
        assert!(copies["why"].as_str().unwrap().contains(told), "{copies}");
        assert_eq!(report["copy"]["notes"].as_array().unwrap().is_empty(), kernel == "generic");
    }
}

#[test]
fn doctor_tells_which_profile_is_in_force() {
    use onecopy::advanced::copy::profile::{Kernels, Profile, Step, VERSION, machine};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tune.toml");
    let generic = || "generic".to_owned();
    let kernels = Kernels { cached: generic(), long: generic(), long_from: 1 << 20, stream: generic() };
    let of = |machine: String| Profile {
        version: VERSION,
        machine,
        measured: 1_700_000_000,
        kernels: kernels.clone(),
        steps: vec![Step { bytes: 48 << 10, ns: 1.5 }],
        crossovers: Vec::new(),
    };
    for (machine, used) in [(machine(), true), ("an abacus, 1 thread".to_owned(), false)] {
        of(machine).save(&path).unwrap();
        let doctor = |args: &[&str]| {
            let mut doctor = Command::new(env!("CARGO_BIN_EXE_onecopy"));
            let out = doctor.arg("doctor").args(args).env("ONECOPY_TUNE", &path).output().unwrap();
            text(&out.stdout).to_owned()
        };
        let report: serde_json::Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
        let features = report["features"].as_array().unwrap();
        let choice = features.iter().find(|feature| feature["name"] == "choice of stores").unwrap();
        assert_eq!(choice["best"], used, "{choice}");
        assert_eq!(report["copy"]["profile"].is_object(), used);
        assert_eq!(doctor(&[]).contains("1.5 ns up to 48 KiB"), used);
    }
}

/// A driver of our own making: what is asked of it and what is made of its answers is the same as for the real one.
#[test]
fn doctor_asks_the_cuda_driver() {
    let doctor = |library: &str, settings: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(["doctor", "--json"])
            .env("ONECOPY_CUDA_LIBRARY", library)
            .env("ONECOPY_STAND_IN", settings)
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let features = report["features"].as_array().unwrap();
        let feature = features.iter().find(|feature| feature["name"] == "device memory").unwrap();
        (report["probes"]["cuda"].clone(), feature.clone())
    };
    let stand_in = onecopy_cuda_stand_in::Control::path();
    let stand_in = stand_in.to_str().unwrap();
    let (probe, feature) = doctor(stand_in, "devices=2");
    assert_eq!(probe["works"], true);
    assert_eq!(probe["detail"], "driver for CUDA 12.8, 2 devices");
    assert!(feature["uses"].as_str().unwrap().contains("not tried on real hardware"), "{feature}");
    for (library, settings, why) in [
        (stand_in, "devices=0", "no CUDA device"),
        (stand_in, "version=10020", "supports CUDA 10.2; install one for 11.0 or newer"),
        (stand_in, "fail.cuInit=0:1:803", "differ in version"),
        ("/nowhere/libcuda.so.1", "", "install NVIDIA's driver"),
    ] {
        let (probe, feature) = doctor(library, settings);
        assert_eq!(probe["works"], false);
        assert!(probe["detail"].as_str().unwrap().contains(why), "{probe}");
        assert!(feature["best"] == false && feature["why"].as_str().unwrap().contains(why), "{feature}");
    }
}

fn first_allowed_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    list.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn colours_only_where_asked_or_seen() {
    assert!(!text(&onecopy(&["doctor"]).stdout).contains('\x1b'));
    assert!(text(&onecopy(&["--color", "always", "doctor"]).stdout).contains('\x1b'));
    assert!(text(&onecopy(&["doctor", "--color=always", "--help"]).stdout).contains('\x1b'));
    assert!(!text(&onecopy(&["doctor", "--color=never"]).stdout).contains('\x1b'));
}

#[test]
fn exit_codes_tell_usage_from_failure() {
    let usage = onecopy(&["--no-such-flag"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(text(&usage.stderr).contains("--no-such-flag"));
    assert_eq!(onecopy(&[]).status.code(), Some(2));
    assert_eq!(onecopy(&["--help"]).status.code(), Some(0));
    assert_eq!(onecopy(&["--version"]).status.code(), Some(0));

    let failed = onecopy(&["generate", "/proc/nowhere"]);
    assert_eq!(failed.status.code(), Some(1));
    let told = text(&failed.stderr);
    assert!(told.starts_with("onecopy: ") && told.lines().count() == 1, "{told}");
}

#[test]
fn an_address_in_use_is_told_in_one_line_with_advice() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for args in [
        ["proxy", "--listen", &address, "--backend", "unix:@onecopy-nobody"],
        ["serve", "--root", "/", "--listen", "unix:/proc/no/folder"],
    ] {
        let out = onecopy(&args);
        assert_eq!(out.status.code(), Some(1));
        let told = text(&out.stderr);
        assert!(told.starts_with("onecopy: ") && told.lines().count() == 1, "{told}");
        assert!(told.contains("choose another address") || told.contains("make it first"), "{told}");
    }
}

#[test]
fn flags_that_make_no_sense_are_told_as_usage() {
    let proxy = ["proxy", "--backend", "unix:@x", "--listen"];
    let serve = ["serve", "--root", "/", "--listen", "unix:@onecopy-nobody"];
    for (first, more, what) in [
        (&proxy[..], &["localhost:80"][..], "write IP:PORT"),
        (&proxy[..], &["tcp:localhost:80"], "write IP:PORT"),
        // (The place is taken; what does not go with it is told.)
        (&proxy[..], &["tcp:127.0.0.1:0", "--forward", "splice"], "add --transport kernel"),
        (&proxy[..], &["127.0.0.1:0", "--threads", "0"], "none would serve nobody"),
        (&proxy[..], &["127.0.0.1:0", "--max-clients", "0"], "none would serve nobody"),
        (&proxy[..], &["127.0.0.1:0", "--backends", "0"], "none would serve nobody"),
        (&proxy[..], &["127.0.0.1:0", "--forward", "splice"], "add --transport kernel"),
        (&proxy[..], &["127.0.0.1:0", "--max-head", "1M"], "go up to 64K"),
        (&serve[..], &["--max-connections", "0"], "none would serve nobody"),
        (&serve[..], &["--idle-timeout", "307445734561825860m"], "longer than a year"),
        (&["top"][..], &["--interval", "0"], "write 50ms or more"),
        (&["top"][..], &["--interval", "18446744073709551615ms"], "longer than a year"),
        (&serve[..], &["--file-send", "sendfile"], "add --transport kernel"),
        (&serve[..], &["--policy", "nt", "--transport", "kernel"], "leave out --transport kernel"),
    ] {
        let out = onecopy(&[first, more].concat());
        assert_eq!(out.status.code(), Some(2), "{more:?}: {out:?}");
        assert!(text(&out.stderr).contains(what), "{more:?}: {}", text(&out.stderr));
    }
    // Too long only with what is added to it, too.
    let folder = std::env::temp_dir();
    let path = format!("unix:{}/{}", folder.display(), "x".repeat(104 - folder.as_os_str().len()));
    for flag in [&["--direct"][..], &["--transport", "kernel", "--direct"]] {
        let out = onecopy(&[&["serve", "--root", "/", "--listen", &path], flag].concat());
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert!(text(&out.stderr).contains("at most 107 bytes"), "{}", text(&out.stderr));
    }
    assert!(!std::path::Path::new(&path[5..]).exists());
}

#[test]
fn help_names_every_command_and_hides_the_packagers_one() {
    let help = onecopy(&["--help"]);
    let help = text(&help.stdout);
    for command in ["serve", "proxy", "nc", "stack", "demo", "bench", "tune", "doctor"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is missing in:\n{help}");
    }
    assert!(!help.contains("generate"), "{help}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for args in [["doctor", "--json"], ["doctor", "--color=auto"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_onecopy"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!((child.wait().unwrap().code(), told.as_str()), (Some(0), ""));
    }
}
