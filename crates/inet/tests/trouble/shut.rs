//! Peers that keep their windows shut, and routers that complain: who waits for what, and for how long.

use super::*;

/// A segment that says that nothing came, and that there is no room.
fn shut(scene: &mut Scene) {
    let Known { ours, theirs, next, una, .. } = scene.known[0];
    let ports = (ours, theirs);
    let raw = Raw { ports, seq: next, ack: una, flags: 16, window: 0, options: vec![], len: 0 };
    scene.inject(&raw, ATTACKER);
}

fn shut_scene() -> (Scene, Id) {
    let mut scene = Scene::new(0);
    scene.handshake();
    scene.act(&Op::Accept);
    let id = scene.known[0].id.unwrap();
    shut(&mut scene);
    assert_eq!(scene.victim.tcp_connection(id).unwrap().sender().window(), 0);
    (scene, id)
}

#[test]
fn nobody_waits_for_ever_for_a_closed_window() {
    // FIN was sent into it, and nothing comes back.
    let (mut scene, id) = shut_scene();
    scene.victim.tcp_close(scene.now, id);
    scene.run(300 * SECOND);
    assert_eq!(scene.victim.tcp_state(id), None);
    // Bytes wait, and each question is answered: there is no room.
    let (mut scene, id) = shut_scene();
    scene.act(&Op::Send { which: 0, len: 1000 });
    scene.victim.tcp_close(scene.now, id);
    for _ in 0..600 {
        scene.run(SECOND);
        shut(&mut scene);
    }
    assert_eq!(scene.victim.tcp_state(id), None);
    assert_eq!(scene.victim.tcp_stats().orphans_ended, 1);
}

#[test]
fn who_holds_a_connection_waits_as_long_as_its_peer_answers() {
    let (mut scene, id) = shut_scene();
    scene.act(&Op::Send { which: 0, len: 1000 });
    for _ in 0..600 {
        scene.run(2 * SECOND);
        shut(&mut scene);
    }
    assert_eq!(scene.victim.tcp_state(id), Some(State::Established));
    scene.run(2000 * SECOND);
    assert_eq!(scene.victim.tcp_take_error(id), Some(Error::TimedOut));
    // The window was taken back from what is under way.
    let mut scene = Scene::new(0);
    scene.handshake();
    scene.act(&Op::Accept);
    let id = scene.known[0].id.unwrap();
    scene.act(&Op::Send { which: 0, len: 1000 });
    for _ in 0..600 {
        scene.run(2 * SECOND);
        shut(&mut scene);
    }
    assert_eq!(scene.victim.tcp_state(id), Some(State::Established));
    scene.run(500 * SECOND);
    assert_eq!(scene.victim.tcp_take_error(id), Some(Error::TimedOut));
}

#[test]
fn what_a_router_said_is_forgotten_once_the_peer_is_heard() {
    let mut scene = Scene::new(0);
    scene.handshake();
    scene.act(&Op::Accept);
    let id = scene.known[0].id.unwrap();
    scene.act(&Op::Send { which: 0, len: 1000 });
    scene.lie(0, 1, 0, 0);
    let Known { ours, theirs, next, nxt, .. } = scene.known[0];
    let raw =
        Raw { ports: (ours, theirs), seq: next, ack: nxt, flags: 16, window: 1000, options: vec![], len: 0 };
    scene.inject(&raw, ATTACKER);
    assert!(!scene.victim.tcp_connection(id).unwrap().sender().has_unacked());
    scene.act(&Op::Send { which: 0, len: 1000 });
    scene.run(2000 * SECOND);
    assert_eq!(scene.victim.tcp_take_error(id), Some(Error::TimedOut));
}

#[test]
fn a_peer_that_answers_after_a_while_starts_no_storm() {
    let mut scene = Scene::new(0);
    scene.handshake();
    scene.act(&Op::Accept);
    let id = scene.known[0].id.unwrap();
    let limit = std::time::Duration::from_secs(5);
    scene.victim.tcp_set(scene.now, id, |settings| settings.user_timeout = Some(limit)).unwrap();
    scene.act(&Op::Send { which: 0, len: 1000 });
    scene.run(3 * SECOND);
    // It takes its window back, after some timeouts, and lives.
    for _ in 0..20 {
        shut(&mut scene);
        scene.run(SECOND);
    }
    assert_eq!(scene.victim.tcp_state(id), Some(State::Established));
    assert!(scene.steps < 100, "{} timers in 23 s", scene.steps);
    scene.run(60 * SECOND);
    assert_eq!(scene.victim.tcp_take_error(id), Some(Error::TimedOut));
}

#[test]
fn a_user_timeout_ends_what_no_window_opens_for() {
    let (mut scene, id) = shut_scene();
    let limit = std::time::Duration::from_secs(5);
    scene.victim.tcp_set(scene.now, id, |settings| settings.user_timeout = Some(limit)).unwrap();
    scene.act(&Op::Send { which: 0, len: 1000 });
    for _ in 0..30 {
        shut(&mut scene);
        scene.run(SECOND);
    }
    assert_eq!(scene.victim.tcp_take_error(id), Some(Error::TimedOut));
}
