//! What a program sets: made what Linux makes of it, or refused with words that say what is allowed. (scripts/tcp/settings-limits.pkt has the
//! kernel's own answers.)

use crate::net::{Net, receive, send};
use onecopy_inet::tcp::{BadSetting, Error, Settings};
use onecopy_inet::udp;
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};
use std::time::Duration;

const fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn what_has_no_meaning_is_refused_and_changes_nothing() {
    let mut net = Net::new(Path::new(), 1);
    let listener = net.listen(80);
    let (a, _) = net.connect(listener, 80);
    let fresh = net.a.stack.tcp_open().unwrap();
    let now = net.now();
    type Change = fn(&mut Settings);
    let wrong: [(Change, BadSetting); 13] = [
        (|set| set.max_segment = Some(87), BadSetting::MaxSegment),
        (|set| set.max_segment = Some(32_768), BadSetting::MaxSegment),
        (|set| set.keepalive_time = seconds(0), BadSetting::KeepaliveTime),
        (|set| set.keepalive_time = seconds(32_768), BadSetting::KeepaliveTime),
        (|set| set.keepalive_interval = Some(Duration::from_millis(999)), BadSetting::KeepaliveInterval),
        (|set| set.keepalive_interval = seconds(32_768), BadSetting::KeepaliveInterval),
        (|set| set.keepalive_probes = Some(0), BadSetting::KeepaliveProbes),
        (|set| set.keepalive_probes = Some(128), BadSetting::KeepaliveProbes),
        (|set| set.syn_retries = Some(0), BadSetting::SynRetries),
        (|set| set.syn_retries = Some(128), BadSetting::SynRetries),
        (|set| set.user_timeout = Some(Duration::from_millis(1 << 31)), BadSetting::UserTimeout),
        (|set| set.ttl = 0, BadSetting::Ttl),
        (|set| set.window_clamp = Some(0), BadSetting::WindowClamp),
    ];
    for (change, bad) in wrong {
        let changes = |set: &mut Settings| {
            set.nodelay = true;
            change(set);
        };
        let error = Error::BadSetting(bad);
        assert_eq!(error.errno(), 22);
        assert_eq!(net.a.stack.tcp_set(now, a, changes), Err(error));
        assert_eq!(*net.a.stack.tcp_settings(a).unwrap(), Settings::default(), "{error}");
        // Before there is a connection, a window may be limited to none: it is not.
        let expected = if bad == BadSetting::WindowClamp { Ok(()) } else { Err(error) };
        assert_eq!(net.a.stack.tcp_set(now, fresh, changes), expected);
        assert!(
            error.to_string().chars().any(|letter| letter.is_ascii_digit()) || expected.is_ok(),
            "{error}"
        );
    }
    assert_eq!(net.a.stack.tcp_settings(fresh).unwrap().window_clamp, None);

    let id = net.a.stack.udp_open().unwrap();
    let refused = net.a.stack.udp_set(id, |set| (set.gro, set.ttl) = (true, 0));
    assert_eq!(refused, Err(udp::Error::BadTtl));
    assert_eq!(*net.a.stack.udp_settings(id).unwrap(), udp::Settings::default());
    net.a.stack.udp_set(id, |set| set.receive_buffer = Some(0)).unwrap();
    assert_eq!(net.a.stack.udp_settings(id).unwrap().receive_buffer, Some(2304));
}

#[test]
fn sizes_and_times_are_made_what_they_can_be() {
    let mut net = Net::new(Path::new(), 1);
    let id = net.a.stack.tcp_open().unwrap();
    let set = |set: &mut Settings| {
        (set.send_buffer, set.receive_buffer) = (Some(0), Some(1));
        (set.window_clamp, set.fin_wait) = (Some(1), seconds(1000));
        (set.service, set.max_segment) = (0xff, Some(0));
    };
    net.a.stack.tcp_set(0, id, set).unwrap();
    let got = net.a.stack.tcp_settings(id).unwrap();
    assert_eq!((got.send_buffer, got.receive_buffer), (Some(4608), Some(2304)));
    assert_eq!((got.window_clamp, got.fin_wait), (Some(1152), seconds(120)));
    assert_eq!((got.service, got.max_segment), (0xfc, None));
    let config = net.a.stack.tcp_config();
    assert_eq!(
        (config.send_buffer(0), config.send_buffer(20_000), config.send_buffer(u32::MAX)),
        (4608, 40_000, 425_984)
    );
    assert_eq!((config.receive_buffer(0), config.receive_buffer(u32::MAX)), (2304, 425_984));
}

#[test]
fn buffers_of_nothing_carry_every_byte() {
    // Whoever said so: the program, or the whole stack.
    for all in [false, true] {
        let capabilities = Capabilities::all(Medium::Ethernet, 1500);
        let mut net = Net::with(Path::new().delay(Duration::from_millis(1)), 1, capabilities, |_, config| {
            if all {
                (config.tcp.rmem, config.tcp.wmem, config.tcp.notsent_lowat) = ([0; 3], [0; 3], 0);
            }
        });
        let listener = net.listen(80);
        let now = net.now();
        if !all {
            let least = |set: &mut Settings| (set.send_buffer, set.receive_buffer) = (Some(0), Some(0));
            net.b.stack.tcp_set(now, listener, least).unwrap();
        }
        let (a, b) = net.connect(listener, 80);
        let bytes: Vec<u8> = (0..50_000).map(|at| (at * 7 + at / 251) as u8).collect();
        for side in [Side::A, Side::B] {
            let (mut sent, mut got) = (0, Vec::new());
            while got.len() < bytes.len() {
                let now = net.now();
                let (from, to, out, into) = match side {
                    Side::A => (&mut net.a, &mut net.b, a, b),
                    Side::B => (&mut net.b, &mut net.a, b, a),
                };
                sent += send(from, &net.pool, now, out, &bytes[sent..]);
                receive(to, now, into, &mut got);
                assert!(net.step(60_000_000_000), "all: {all}, from {side:?}: {} bytes came", got.len());
            }
            assert!(got == bytes);
        }
    }
}
