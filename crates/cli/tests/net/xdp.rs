//! `onecopy stack` and `nc` past the kernel's IP, on one end of a veth pair whose other one is the kernel's.

use crate::harness::noise;
use crate::world::{OURS, World};
use rustix::io::Errno;

/// The pair; not, with what is lacking on stdout, where the machine has not what it takes.
fn pair() -> Option<World> {
    let world = World::new(&["nc", "ip"])?;
    if let Err(why @ (Errno::PERM | Errno::AFNOSUPPORT)) = onecopy_sys::xdp::socket() {
        println!("lacking: AF_XDP (root, CAP_NET_RAW, CONFIG_XDP_SOCKETS): {why}");
        return None;
    }
    let line = "ip link add near type veth peer name far && ip addr add 10.77.0.1/24 dev far \
                && ip link set far up && ip link set near up";
    if !world.shell(line).status.success() {
        println!("lacking: veth devices");
        return None;
    }
    Some(world)
}

const ON: [&str; 4] = ["--xdp", "near", "--addr", "10.77.0.2/24"];

#[test]
fn a_stack_s_services_are_reached_through_it() {
    let Some(world) = pair() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), noise(1_000_000)).unwrap();
    let pcap = dir.path().join("packets.pcapng");
    let flags = ["stack", "--echo", "7", "--json", "--pcap", pcap.to_str().unwrap()];
    let script = format!("cd {} && nc -N {OURS} 7 <data | cmp - data", dir.path().display());
    let ended = world.onecopy(&[&flags, &ON, &["--", "bash", "-c", &script]]).end().well();
    let said = ended.text();
    assert!(said.contains("\"xdp\":\"near\""), "{said}");
    let down = said.lines().find(|line| line.contains("\"event\":\"down\"")).unwrap();
    let down: serde_json::Value = serde_json::from_str(down).unwrap();
    assert!(down["link"]["unfinished"].as_u64().unwrap() > 0, "{down}");
    assert_eq!(down["why"], "bash ended, exit status: 0", "{down}");
    assert!(std::fs::metadata(&pcap).unwrap().len() > 2_000_000, "it came, and went back");
    assert!(!world.does("ip -d link show near").contains("xdp"), "nothing is left of it");
}

#[test]
fn nc_sends_to_the_system_s() {
    let Some(world) = pair() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (data, got) = (dir.path().join("data"), dir.path().join("got"));
    std::fs::write(&data, noise(1_000_000)).unwrap();
    let mut server = std::process::Command::new("bash");
    server.args(["-c", &format!("nc -l -N 10.77.0.1 9000 >{}", got.display())]);
    let server = world.start(&mut server);
    let send = ["nc", "-v", "-w", "10s", "--send", data.to_str().unwrap(), "10.77.0.1:9000"];
    while !world.does("ss -ltn").contains(":9000") {
        std::thread::yield_now();
    }
    let ended = world.onecopy(&[&send, &ON]).end().well();
    let said = ended.said.join("\n");
    assert!(said.contains("AF_XDP on near, queue 0, MTU 1500: in the driver"), "{said}");
    server.end().well();
    assert!(std::fs::read(&got).unwrap() == noise(1_000_000));
}

#[test]
fn what_cannot_be_says_what_to_do() {
    let Some(world) = pair() else { return };
    let said = |interface: &str| {
        let ended = world.onecopy(&[&["stack", "--addr", "10.77.0.2/24", "--xdp", interface]]).end();
        assert!(!ended.status.success());
        ended.said.join("\n")
    };
    assert!(said("none").contains("`ip link` has their names"));
    assert!(said("lo").contains("link/ether"));
    world.does("ip link set near down");
    assert!(said("near").contains("ip link set near up"));
}
