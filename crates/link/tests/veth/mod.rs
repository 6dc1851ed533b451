//! A veth pair in network namespaces of a test's own, for links past the kernel's IP.

use onecopy_sys::netns::Namespace;
use rustix::io::Errno;
use std::process::Command;

/// `near` in one namespace, `far` in another, with addresses.
pub struct World {
    pub here: Namespace,
    pub there: Namespace,
}

impl World {
    /// `far` has these addresses, each with its prefix. Not, with what is lacking on stdout, where the machine has not what it takes.
    pub fn of(far: &[&str]) -> Option<World> {
        let (here, there) = match (Namespace::new(), Namespace::new()) {
            (Ok(here), Ok(there)) => (here, there),
            _ => {
                println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
                return None;
            }
        };
        if let Err(why @ (Errno::PERM | Errno::AFNOSUPPORT)) = onecopy_sys::xdp::socket() {
            println!("lacking: AF_XDP (root, CAP_NET_RAW, CONFIG_XDP_SOCKETS): {why}");
            return None;
        }
        let pair = format!("link add near type veth peer name far netns {}", there.path());
        let made = here.run(|| Command::new("ip").args(pair.split(' ')).status()).unwrap();
        if !made.is_ok_and(|status| status.success()) {
            println!("lacking: ip (iproute2), or veth devices");
            return None;
        }
        for address in far {
            // Of IPv6 it may be used at once: nobody else has it.
            let at_once = if address.contains(':') { " nodad" } else { "" };
            ip(&there, &format!("addr add {address} dev far{at_once}"));
        }
        ip(&there, "link set far up");
        ip(&here, "link set near up");
        Some(World { here, there })
    }
}

/// Runs ip(8) there.
pub fn ip(namespace: &Namespace, line: &str) {
    let run = || Command::new("ip").args(line.split(' ')).status().unwrap();
    assert!(namespace.run(run).unwrap().success(), "ip {line}");
}
