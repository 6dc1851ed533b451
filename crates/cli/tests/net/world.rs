//! A network of the test's own: the kernel at one address, our stack at the other.

use crate::harness::{Running, onecopy};
use onecopy::advanced::link::{Tap, TapConfig};
use onecopy_sys::netns::Namespace;
use onecopy_sys::tun;
use rustix::io::Errno;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Output, Stdio};

/// The kernel's side of a TAP, and ours.
pub const KERNEL: &str = "10.77.0.1";
pub const OURS: &str = "10.77.0.2";
/// The kernel behind a router.
pub const FAR: &str = "10.78.0.1";

/// The flags of a stack on the TAP, which also give the kernel its address.
pub const BOTH: [&str; 6] = ["--tap", "onecopy0", "--addr", "10.77.0.2/24", "--kernel-addr", "10.77.0.1/24"];

/// A namespace.
pub struct World {
    pub namespace: Namespace,
}

impl World {
    /// None, with a reason on standard error, where the machine has not what it takes, `programs` among it.
    pub fn new(programs: &[&str]) -> Option<World> {
        for program in programs {
            let found = std::env::var_os("PATH").is_some_and(|path| {
                std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
            });
            // There are several of that name, with flags of their own.
            let other = || {
                let help = Command::new("nc").arg("-h").output();
                !help.is_ok_and(|help| {
                    [help.stdout, help.stderr].concat().windows(7).any(|at| at == b"OpenBSD")
                })
            };
            if !found || (*program == "nc" && other()) {
                println!("lacking: {program}, so our stack does not meet it here");
                return None;
            }
        }
        let namespace = match Namespace::new() {
            Err(Errno::PERM) => {
                println!(
                    "lacking: a network namespace (root, CAP_SYS_ADMIN), so our stack meets nobody here"
                );
                return None;
            }
            namespace => namespace.expect("a network namespace"),
        };
        match namespace.run(|| Tap::open(TapConfig::new("probe"))).unwrap() {
            Err(error)
                if [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&error.errno()) =>
            {
                println!("lacking: a TAP ({error})");
                return None;
            }
            tap => drop(tap.expect("a TAP")),
        }
        namespace.run(|| tun::set_up("lo")).unwrap().unwrap();
        Some(World { namespace })
    }

    /// A TAP of the test's own, with the kernel at its other side.
    pub fn tap(&self) -> Tap {
        let open = || {
            let tap = Tap::open(TapConfig::new("onecopy0")).unwrap();
            tun::set_address(tap.name(), KERNEL.parse().unwrap(), 24).unwrap();
            tun::set_up(tap.name()).unwrap();
            tap
        };
        self.namespace.run(open).unwrap()
    }

    /// Starts a program in there.
    pub fn start(&self, command: &mut Command) -> Running {
        self.namespace.run(|| Running::start(command)).unwrap()
    }

    /// Ours.
    pub fn onecopy(&self, args: &[&[&str]]) -> Running {
        self.start(&mut onecopy(&args.concat()))
    }

    /// Runs a line of the shell's in there, to its end.
    pub fn shell(&self, line: &str) -> Output {
        let mut command = Command::new("bash");
        command.args(["-c", line]).stdin(Stdio::null());
        self.namespace.run(|| command.output().unwrap()).unwrap()
    }

    /// The same, which has to succeed.
    pub fn does(&self, line: &str) -> String {
        let out = self.shell(line);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{line}: {said}{}", String::from_utf8_lossy(&out.stderr));
        said
    }

    /// Whether there is an interface of this name.
    pub fn has(&self, name: &str) -> bool {
        self.namespace.run(|| tun::mtu(name)).unwrap().is_ok()
    }

    /// Another namespace behind this one, which is its router and drops packets by nft's `rule`. The kernel is there at [`FAR`].
    pub fn behind(&self, rule: &str) -> World {
        let far = Namespace::new().unwrap();
        let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
        self.does(&format!(
            "set -e
            ip link add router type veth peer name far netns {there}
            ip addr add 10.78.0.2/24 dev router
            ip link set router up
            echo 1 >/proc/sys/net/ipv4/ip_forward
            nft add table ip trouble
            nft 'add chain ip trouble forward {{ type filter hook forward priority 0 ; }}'
            nft add rule ip trouble forward {rule} counter drop"
        ));
        let far = World { namespace: far };
        let address: Ipv4Addr = FAR.parse().unwrap();
        let up = || tun::set_address("far", address, 24).and_then(|()| tun::set_up("far"));
        far.namespace.run(up).unwrap().unwrap();
        far.does("ip route add default via 10.78.0.2");
        far
    }

    /// Packets that it dropped.
    pub fn dropped(&self) -> u64 {
        let said = self.does("nft list table ip trouble");
        let count = said.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("nft says {said}"))
    }
}
