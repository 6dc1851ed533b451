//! packaging/systemd as an administrator uses it: systemd is booted in namespaces of its own, and packaging/README.md's commands
//! install and start the units there, over a copy of / that is thrown away.

mod booted;

use booted::Booted;

/// A file that both programs have to pass on, and what a client says of it.
const BODY: usize = 3 << 20;

/// Boots, installs as the README says, and waits until both programs have said that they are ready; None where this machine lacks something.
fn installed() -> Option<Booted> {
    let booted = Booted::boot()?;
    booted.run("mkdir /srv/onecopy && head -c 3145728 /dev/urandom > /srv/onecopy/body");
    for command in booted::commands("useradd") {
        booted.run(&command);
    }
    for unit in ["onecopy-serve", "onecopy-proxy"] {
        // (Type=notify: a start that is over is one that was ready.)
        assert_eq!(
            booted.run(&format!("systemctl is-active {unit}.service {unit}.socket")),
            "active\nactive\n"
        );
    }
    Some(booted)
}

/// Asks the proxy once, from inside, and compares.
fn asks(booted: &Booted) {
    let seen = booted.run("curl -sS --fail --max-time 20 http://127.0.0.1/body | tee /tmp/seen | wc -c");
    assert_eq!(seen.trim().parse(), Ok(BODY));
    booted.run("cmp /tmp/seen /srv/onecopy/body");
}

#[test]
fn the_units_serve_from_their_sandbox() {
    let Some(booted) = installed() else { return };
    asks(&booted);
    for unit in ["onecopy-serve", "onecopy-proxy"] {
        let process = booted.main_process(unit);
        let status = booted.run(&format!("cat /proc/{process}/status"));
        let says = |key: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap_or_else(|| panic!("{key} in {status}"));
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let user = booted.run("id --user onecopy").trim().to_owned();
        assert_eq!(says("Uid:"), vec![user; 4], "{unit}");
        assert_eq!(says("CapBnd:"), ["0000000000000000"], "{unit}");
        assert_eq!(says("NoNewPrivs:"), ["1"], "{unit}");
        assert_eq!(says("Seccomp:"), ["2"], "{unit}");
        // ProtectSystem=strict: it sees / as one that cannot be written.
        let mounts = booted.run(&format!("cat /proc/{process}/mounts"));
        let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/"));
        assert!(
            root.is_some_and(|root| root.split(' ').nth(3).is_some_and(|how| how.starts_with("ro,"))),
            "{mounts}"
        );
    }
    // A body is lent from the one to the other, and nothing of what that takes is forbidden.
    let metrics = booted.run("curl -sS --fail http://127.0.0.1:9180/metrics");
    let counted = |name: &str| booted::metric(&metrics, &format!("onecopy_{name}_total"));
    assert_eq!([counted("lent"), counted("fallbacks")], [1.0, 0.0], "{metrics}");
    assert_eq!(counted("body_bytes"), BODY as f64, "{metrics}");
    booted.run("onecopy health 127.0.0.1:9180");
    // access-log = "journal" of the daemon, and the proxy's file.
    booted.wait_for("journalctl --unit onecopy-serve.service", "GET /body");
    booted.wait_for("cat /var/log/onecopy/access.log", "GET /body");
    for unit in ["onecopy-proxy", "onecopy-serve"] {
        booted.run(&format!("systemctl stop {unit}.service"));
        assert_eq!(
            booted.run(&format!("systemctl show --value --property Result {unit}.service")),
            "success\n"
        );
    }
}

#[test]
fn a_restart_of_both_units_refuses_nobody() {
    let Some(booted) = installed() else { return };
    let asking = booted.start(
        "i=0; until [ -e /tmp/enough ]; do \
         curl -sS --fail --max-time 20 -o /dev/null http://127.0.0.1/body || exit 1; i=$((i+1)); done; echo $i answered",
    );
    asks(&booted);
    let before = ["onecopy-serve", "onecopy-proxy"].map(|unit| booted.main_process(unit));
    for command in booted::commands("systemctl restart") {
        booted.run(&command);
    }
    let after = ["onecopy-serve", "onecopy-proxy"].map(|unit| booted.main_process(unit));
    assert!(before[0] != after[0] && before[1] != after[1], "{before:?} {after:?}");
    asks(&booted);
    booted.run("touch /tmp/enough");
    let said = asking.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(
        said.status.success() && text.contains(" answered"),
        "{text}{}",
        String::from_utf8_lossy(&said.stderr)
    );
}

#[test]
fn a_reload_opens_the_log_again_and_who_is_killed_is_started_again() {
    let Some(booted) = installed() else { return };
    asks(&booted);
    booted.wait_for("cat /var/log/onecopy/access.log", "GET /body");
    let first = booted.main_process("onecopy-proxy");
    booted.run("mv /var/log/onecopy/access.log /var/log/onecopy/access.log.1");
    for command in booted::commands("systemctl reload") {
        booted.run(&command);
    }
    booted.wait_for("ls /var/log/onecopy", "access.log\n");
    asks(&booted);
    booted.wait_for("cat /var/log/onecopy/access.log", "GET /body");
    assert_eq!(booted.main_process("onecopy-proxy"), first);
    // Restart=on-failure.
    booted.run(&format!("kill -KILL {first}"));
    booted.wait_for("systemctl show --value --property NRestarts onecopy-proxy.service", "1");
    asks(&booted);
    assert_ne!(booted.main_process("onecopy-proxy"), first);
}
