//! `nc --devmem`: in one process without any privilege, and with the kernel at the other side of a TAP.

use crate::harness::{Ended, Running, onecopy};
use crate::world::{BOTH, KERNEL, World};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

/// As `yes $(echo -e \\x01\\x02\\x03\\x04\\x05\\x06)` has it, from byte `at` on.
fn pattern(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| b"\x01\x02\x03\x04\x05\x06\n"[(at % 7) as usize]).collect()
}

fn ended(args: &[&str]) -> Ended {
    Running::start(&mut onecopy(args)).end()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {value}"))
}

/// All of it came into device memory, every token went back, and this program copied none of it.
fn all_by_reference(received: &Value, bytes: u64) {
    assert_eq!((number(received, "device"), number(received, "linear")), (bytes, 0), "{received}");
    assert_eq!(number(received, "tokens_given_back"), number(received, "fragments"), "{received}");
    assert!(number(received, "fragments") > 0 && number(received, "give_back_calls") > 0, "{received}");
    assert_eq!((number(received, "user_copied"), number(received, "referenced")), (0, bytes), "{received}");
    let of = |name| -> u64 {
        received["queues"].as_array().unwrap().iter().map(|queue| number(queue, name)).sum()
    };
    let refused = received["refused"].as_object().unwrap();
    assert!(refused.len() > 10 && refused.values().all(|count| *count == 0), "{refused:?}");
    let (placed, landed) = (of("placed_bytes"), of("landed_bytes"));
    assert!(placed >= bytes, "{received}");
    // The device's own count says the same: what the kernel put there itself it did not copy.
    assert_eq!(number(&received["device_copied"], "into"), placed - landed, "{received}");
}

#[test]
fn from_one_devices_memory_to_anothers_in_one_process() {
    let len = 20_000_003;
    let text = len.to_string();
    let args =
        ["nc", "--devmem", "--pair", "--generate", &text, "--validate", "7", "--json", "--memory", "4M"];
    for more in [&[][..], &["--chunk", "1000"], &["--queue", "2", "--queues", "3"]] {
        let report = ended(&[&args[..], more].concat()).well().report();
        let (received, sent) = (&report["received"], &report["sent"]);
        all_by_reference(received, len);
        assert_eq!((number(received, "validated"), number(received, "wrong")), (len, 0), "{report}");
        // One copy of the kernel's out of the cable, and one to the device of what did not land there; whoever compares reads it back.
        let copied = number(received, "kernel_copied");
        assert!((len..=2 * len).contains(&copied), "{report}");
        // (So is what landed there by a wrong guess.)
        assert!(number(&received["device_copied"], "out") >= len, "{report}");
        assert_eq!((number(sent, "bytes"), number(sent, "user_copied")), (len, 0), "{report}");
        assert_eq!(number(sent, "completed"), number(sent, "sends"), "{report}");
        assert_eq!(
            (&report["devmem"], &report["stand_in"], &report["gpu"]),
            (&"opaque".into(), &true.into(), &Value::Null)
        );
    }
}

#[test]
fn a_file_goes_through_two_devices_and_a_person_is_told_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let data = crate::harness::noise(3_000_001);
    std::fs::write(&from, &data).unwrap();
    let args = ["nc", "--devmem", "--pair", "--send", from.to_str().unwrap(), "--recv", to.to_str().unwrap()];
    let ended = ended(&args).well();
    assert!(std::fs::read(&to).unwrap() == data);
    let said = ended.said.join("\n");
    assert!(said.contains("3000001 into device memory, 0 linear"), "{said}");
    assert!(said.contains("a stand-in: a memfd that no process maps"), "{said}");
    assert!(said.contains("there is no GPU behind it"), "{said}");
    assert!(said.contains("copies per byte: user 0.00"), "{said}");
    if onecopy::storage::Storage::new().is_err() {
        return println!("lacking: io_uring, so nobody saw how the files went");
    }
    for what in ["read", "written"] {
        assert!(said.contains(&format!("the file was {what} by io_uring in ")), "{said}");
    }
    assert_eq!(said.matches("; 3000001 bytes by ").count(), 2, "{said}");
}

/// Each scenario, by the errno that the kernel has for it.
fn all_checks_pass(out: &[u8], peer: &str) {
    let report: Value = serde_json::from_slice(out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 24);
    for check in checks {
        assert_eq!(check["ok"], true, "{check}");
    }
    assert!(report["peer"].as_str().unwrap().contains(peer), "{report}");
    let said = |name: &str| {
        let check = checks.iter().find(|check| check["check"] == name);
        check.unwrap_or_else(|| panic!("no check {name:?}"))["said"].as_str().unwrap().to_owned()
    };
    assert!(said("headers are split off from 1 byte to 8 KiB").contains("nothing linear"));
    assert!(said("deactivate a bound queue").starts_with("refused: "));
    assert!(said("bind memory that is sent from").ends_with("(counted: rx_busy)"));
}

#[test]
fn what_must_fail_fails_and_what_must_work_works_in_one_process() {
    let args = ["nc", "--devmem", "--check", "--json"];
    all_checks_pass(&ended(&args).well().out, "another stack");
    let text = ended(&args[..3]).well();
    assert!(text.text().lines().filter(|line| line.starts_with("ok ")).count() == 24, "{}", text.text());
}

#[test]
fn and_with_the_kernel_behind_a_tap() {
    let Some(world) = World::new(&[]) else { return };
    let args = ["nc", "--devmem", "--check", "--json"];
    all_checks_pass(&world.onecopy(&[&args, &BOTH]).end().well().out, "the kernel at 10.77.0.1");
}

/// A client of the kernel's sends the pattern to a server that says where it lands.
#[test]
fn the_kernel_sends_the_pattern_into_device_memory() {
    let Some(world) = World::new(&[]) else { return };
    let len = 30_000_001;
    let server = ["nc", "--devmem", "-l", "5201", "--json", "-v", "--validate", "7", "--memory", "8M"];
    let mut server = world.onecopy(&[&server, &["--queues", "2", "--fail-on-linear"], &BOTH]);
    server.listens();
    let mut client = world.namespace.run(|| TcpStream::connect("10.77.0.2:5201")).unwrap().unwrap();
    client.write_all(&pattern(0, len)).unwrap();
    drop(client);
    let report = server.end().well().report();
    let received = &report["received"];
    all_by_reference(received, len as u64);
    assert_eq!((number(received, "validated"), number(received, "wrong")), (len as u64, 0), "{report}");
    // From the kernel to a page of the host's, and from there to the device; or there at once.
    let copied = number(received, "kernel_copied");
    assert!((len as u64..=2 * len as u64).contains(&copied), "{report}");
    assert_eq!(received["queues"].as_array().unwrap().len(), 2);
}

/// One wrong byte is told and counted; with more than 20 it gives up, and says so.
#[test]
fn what_is_not_the_pattern_is_noticed() {
    let Some(world) = World::new(&[]) else { return };
    let server = ["nc", "--devmem", "-l", "5201", "--json", "-v", "--validate", "7"];
    for (wrong, gives_up) in [(vec![77_777], false), ((0..30).map(|n| 50_000 + 13 * n).collect(), true)] {
        let mut server = world.onecopy(&[&server, &BOTH]);
        server.listens();
        let mut client = world.namespace.run(|| TcpStream::connect("10.77.0.2:5201")).unwrap().unwrap();
        let mut data = pattern(0, 200_000);
        for at in &wrong {
            data[*at] ^= 0x40;
        }
        // (The server may be gone before the end.)
        let _ = client.write_all(&data);
        drop(client);
        let ended = server.end();
        let said = ended.said.join("\n");
        assert_eq!(ended.status.code(), Some(i32::from(gives_up)), "{said}");
        let report = ended.report();
        assert_eq!(number(&report["received"], "wrong") > 20, gives_up, "{said}");
        assert!(said.contains(&format!("byte {} is ", wrong[0])), "{said}");
        assert_eq!(said.contains("is not the pattern"), gives_up, "{said}");
    }
}

#[test]
fn the_kernel_gets_the_pattern_out_of_device_memory() {
    let Some(world) = World::new(&[]) else { return };
    // The TAP is gone with the program that makes it, so the kernel's address is there before.
    world.does("ip tuntap add dev onecopy0 mode tap vnet_hdr && ip addr add 10.77.0.1/24 dev onecopy0 && ip link set onecopy0 up");
    let listener = world.namespace.run(|| TcpListener::bind((KERNEL, 0))).unwrap().unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let len = 20_000_000_u64;
    let text = len.to_string();
    for chunk in [&[][..], &["--chunk", "777"]] {
        let client = ["nc", "--devmem", &at, "--json", "--validate", "7", "--generate", &text];
        let own = ["--tap", "onecopy0", "--addr", "10.77.0.2/24"];
        let client = world.onecopy(&[&client, chunk, &own]);
        let mut all = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
        let report = client.end().well().report();
        assert!(all == pattern(0, len as usize), "{chunk:?}");
        let sent = &report["sent"];
        assert_eq!((number(sent, "bytes"), number(sent, "user_copied")), (len, 0), "{report}");
        assert_eq!(number(sent, "completed"), number(sent, "sends"), "{report}");
        // Put there by the program, and out of the device for the kernel (more, where something was sent again), if that does not take it itself.
        assert_eq!(number(&sent["device_copied"], "into"), len, "{report}");
        let (out, copied) = (number(&sent["device_copied"], "out"), number(sent, "kernel_copied"));
        assert!(if out == 0 { copied == len } else { out >= len && copied == 2 * len }, "{report}");
    }
}

/// Both sides by the kernel's TCP, over the loopback: from one device's memory to another's.
#[test]
fn the_kernels_tcp_carries_it_from_memory_to_memory_without_any_privilege() {
    if !lands_by_the_kernel() {
        return;
    }
    let (len, kernel) = (20_000_003, ["--transport", "kernel-uring", "--json", "--validate", "7"]);
    for chunk in [&[][..], &["--chunk", "777"]] {
        let server = ["nc", "--devmem", "-l", "127.0.0.1:0", "-v", "--memory", "4M", "--fail-on-linear"];
        let mut server = Running::start(&mut onecopy(&[&server[..], &kernel].concat()));
        let at = server.listens();
        let text = len.to_string();
        let client = ["nc", "--devmem", &at, "--generate", &text];
        let client = ended(&[&client[..], chunk, &kernel].concat()).well().report();
        let server = server.end().well().report();
        let (received, sent) = (&server["received"], &client["sent"]);
        all_by_reference(received, len);
        assert_eq!((number(received, "validated"), number(received, "wrong")), (len, 0), "{server}");
        assert_eq!(number(received, "kernel_copied"), len, "{server}");
        assert_eq!((number(sent, "bytes"), number(sent, "user_copied")), (len, 0), "{client}");
        assert_eq!((number(sent, "kernel_copied"), number(sent, "referenced")), (len, len), "{client}");
        assert_eq!(number(&sent["device_copied"], "out"), 0, "{client}");
        assert_eq!(number(sent, "completed"), number(sent, "sends"), "{client}");
    }
}

/// A NIC that cannot is asked, and what is done instead is told.
#[test]
fn a_nic_that_refuses_is_told_of_and_the_kernel_copies() {
    if !lands_by_the_kernel() {
        return;
    }
    let kernel = ["--transport", "kernel-uring", "--json", "--validate", "7", "--memory", "4M"];
    let mut server = Running::start(&mut onecopy(
        &[&["nc", "--devmem", "-l", "127.0.0.1:0", "-v", "--nic", "lo"][..], &kernel].concat(),
    ));
    let at = server.listens();
    let client = ["nc", "--devmem", &at, "--generate", "1000000"];
    let client = ended(&[&client[..], &kernel].concat()).well().report();
    let server = server.end().well();
    let said = server.said.join("\n");
    assert!(said.contains("payload comes by the kernel's one copy, not by the NIC: "), "{said}");
    let report = server.report();
    all_by_reference(&report["received"], 1_000_000);
    let path = |side: &Value| side["path"].as_str().unwrap().to_owned();
    assert!(path(&report["received"]).contains("not by the NIC"), "{report}");
    assert_eq!(path(&client["sent"]), "by the kernel's one copy", "{client}");
}

#[test]
fn a_nic_is_for_who_receives_over_the_kernel_s_tcp() {
    for (args, why) in [
        (&["-l", "127.0.0.1:0", "--nic", "lo"][..], "takes sockets of ours"),
        (&["-l", "127.0.0.1:0", "--nic", "lo", "--transport", "auto"], "add --transport kernel-uring"),
        (
            &[
                "-l",
                "127.0.0.1:0",
                "--nic",
                "lo",
                "--transport",
                "kernel-uring",
                "--generate",
                "9",
                "--validate",
                "3",
            ],
            "send nothing",
        ),
        (
            &["-l", "127.0.0.1:0", "--nic", "no-such-nic", "--transport", "kernel-uring"],
            "`ip link` has their names",
        ),
        (&["127.0.0.1:1", "--nic", "lo", "--transport", "kernel-uring"], "--listen"),
    ] {
        let ended = ended(&[&["nc", "--devmem"], args].concat());
        let said = ended.said.join("\n");
        assert!(!ended.status.success() && said.contains(why), "{args:?}: {said}");
    }
}

/// Who tries until somebody listens, and sends at once, finds the memory bound. (Where neither can be, what is told is what was tried first.)
#[test]
fn memory_is_bound_before_anybody_can_connect() {
    if !lands_by_the_kernel() {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    for (memory, why) in [("32K", "give 64 KiB"), ("4M", "cannot listen on")] {
        let ended = ended(&["nc", "--devmem", "-l", &at, "--transport", "kernel-uring", "--memory", memory]);
        let said = ended.said.join("\n");
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{memory}: {said}");
    }
}

/// Whether this kernel puts bytes into memory that nothing maps.
fn lands_by_the_kernel() -> bool {
    use onecopy::advanced::link::Registered;
    use onecopy::advanced::pool::{DeviceId, DeviceMemory};
    match Registered::new(&DeviceMemory::opaque(1024, DeviceId(0)).unwrap()) {
        Ok(_) => true,
        Err(why) => {
            println!("lacking: registered buffers of io_uring ({why})");
            false
        }
    }
}

#[test]
fn command_lines_that_make_no_sense() {
    for (line, why) in [
        ("--devmem", "whom to connect to?"),
        ("--devmem 10.0.0.1:9", "--pair for both sides in this process"),
        ("--devmem --transport kernel 10.0.0.1:9", "--transport kernel-uring for the kernel's TCP"),
        ("--devmem --transport kernel-uring --tap t --addr 10.0.0.2/24 10.0.0.1:9", "leave it out"),
        ("--devmem --transport kernel-uring --pair", "cannot be used with"),
        ("--devmem -l 9 --tap t", "as in --addr 10.0.0.2/24"),
        ("--devmem=cuda --pair", "possible values: opaque"),
        ("--devmem --pair", "add --send FILE, or --generate SIZE"),
        ("--devmem --pair --generate 1M", "--validate <N>"),
        ("--devmem --pair --generate 1M --validate 0", "0 is not in 1..=255"),
        ("--devmem --pair -l 9", "cannot be used with"),
        ("--devmem --tap t --addr 10.0.0.2/24 10.0.0.1:9 --recv /dev/null", "add -l"),
        ("--devmem --tap t --addr 10.0.0.2/24 -l 9 --chunk 3", "leave it out with -l"),
        ("--devmem unix:/x", "leave out --devmem"),
        ("--devmem --udp 10.0.0.1:9", "cannot be used with"),
        ("--devmem --check --chunk 3", "cannot be used with"),
        ("--check", "--devmem"),
        ("--memory 1M localhost:1", "--devmem"),
        ("--devmem --pair --generate 1 --validate 2 --queues 2000", "there are 1024 queues at most"),
    ] {
        let args: Vec<&str> = std::iter::once("nc").chain(line.split_whitespace()).collect();
        let out = onecopy(&args).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(why), "{line}: {said}");
    }
    // What only shows when it is tried.
    for (line, why) in [
        (
            "--devmem --pair --generate 1M --validate 7 --memory 32K",
            "give 64 KiB and four of the longest packets",
        ),
        ("--devmem --pair --send /no/such/file", "cannot read /no/such/file"),
    ] {
        let args: Vec<&str> = std::iter::once("nc").chain(line.split_whitespace()).collect();
        let out = onecopy(&args).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains(why), "{line}: {said}");
    }
}
