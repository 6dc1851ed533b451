//! What Prometheus gets.

use crate::harness::*;
use prometheus_parse::{Scrape, Value};
use rustix::process::Signal;
use std::net::SocketAddr;

fn address(program: &Running) -> SocketAddr {
    let line = program.line("metrics on http://");
    line.split("http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap()
}

fn scrape(at: SocketAddr) -> Scrape {
    let response = Client::connect(at).get("/metrics");
    assert_eq!(response.status, 200);
    assert!(
        response.field("Content-Type").unwrap().starts_with("application/openmetrics-text; version=1.0.0")
    );
    let text = String::from_utf8(response.body).unwrap();
    // OpenMetrics 1.0, section "Overall Structure": it ends so, and each sample's family was described.
    assert!(text.ends_with("# EOF\n"), "{text}");
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

/// The value of a sample with this name and, where there are several, kind.
fn value(scrape: &Scrape, name: &str, kind: Option<&str>) -> f64 {
    let found =
        scrape.samples.iter().find(|sample| sample.metric == name && sample.labels.get("kind") == kind);
    match found.unwrap_or_else(|| panic!("no {name}: {scrape:#?}")).value {
        Value::Counter(n) | Value::Gauge(n) | Value::Untyped(n) => n,
        ref other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn the_counters_and_the_health() {
    let mut pair = Pair::start("--metrics 127.0.0.1:0", "--metrics 127.0.0.1:0 --grace 9m");
    let length = pair.file("f", 300_000).len() as f64;
    let (front, back) = (address(&pair.proxy), address(&pair.daemon));
    for _ in 0..2 {
        assert_eq!(pair.get("/f", "").status, 200);
    }
    assert_eq!(pair.get("/none", "").status, 404);
    let counted = pair.proxy.stats(|stats| stats["requests"] == 3);
    for at in [front, back] {
        until("all are counted", || value(&scrape(at), "onecopy_requests_total", None) >= 2.0);
    }
    let got = scrape(front);
    assert!(value(&got, "onecopy_body_bytes_total", None) >= 2.0 * length);
    assert_eq!(value(&got, "onecopy_body_bytes_total", None), counted["body_bytes"].as_f64().unwrap());
    assert_eq!(value(&got, "onecopy_refused_total", None), 1.0);
    assert_eq!(value(&got, "onecopy_connections_total", None), 3.0);
    assert_eq!(value(&got, "onecopy_backend_up", None), 1.0);
    for (kind, name) in
        [("kernel", "kernel_copied"), ("referenced", "referenced"), ("user-cached", "user_copied")]
    {
        assert_eq!(
            Some(value(&got, "onecopy_copied_bytes_total", Some(kind))),
            counted[name].as_f64(),
            "{name}"
        );
    }
    let histogram = got.samples.iter().find_map(|sample| match &sample.value {
        Value::Histogram(classes) if sample.metric == "onecopy_request_duration_seconds" => Some(classes),
        _ => None,
    });
    let classes = histogram.expect("a histogram");
    assert!(
        classes.windows(2).all(|two| two[0].count <= two[1].count && two[0].less_than < two[1].less_than)
    );
    assert_eq!(classes.last().map(|all| (all.count, all.less_than)), Some((3.0, f64::INFINITY)));

    // What is none of its business, or no request.
    assert_eq!(Client::connect(front).get("/f").status, 404);
    let mut odd = Client::connect(front);
    odd.send("nonsense\r\n\r\n");
    assert_eq!(odd.response("GET").status, 400);

    assert_eq!(Client::connect(front).get("/healthz").body, b"ok\n");
    // A client that takes nothing keeps it from ending.
    std::fs::File::create(pair.path("large")).unwrap().set_len(64 << 20).unwrap();
    let mut slow = pair.client();
    slow.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    slow.tcp.peek(&mut [0; 1]).unwrap();
    pair.proxy.signal(Signal::TERM);
    until("it is not well", || Client::connect(front).get("/healthz").status == 503);
    drop(slow);
    assert_eq!(pair.proxy.end(), Some(0));
}

/// What a container's engine asks.
#[test]
fn health_as_an_exit_status() {
    let mut pair = Pair::start("--metrics 127.0.0.1:0", "--metrics 127.0.0.1:0 --grace 9m");
    pair.file("f", 8 << 20);
    let front = address(&pair.proxy).to_string();
    for at in [&front, &address(&pair.daemon).to_string()] {
        assert_eq!(Running::start(&["health", at]).end(), Some(0));
    }
    // Somebody still takes an answer, so that it goes on for a while.
    let mut client = pair.client();
    client.send("GET /f HTTP/1.1\r\nHost: x\r\n\r\n");
    client.head();
    pair.proxy.signal(Signal::TERM);
    until("it says so", || {
        let mut asked = Running::start(&["health", &front]);
        asked.end() == Some(1) && asked.said("is stopping")
    });
    client.count();
    assert_eq!(pair.proxy.end(), Some(0));
    let mut gone = Running::start(&["health", &front]);
    assert_eq!(gone.end(), Some(1));
    gone.line("with --metrics");
    // One who says something else, and one who says nothing.
    let odd = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = odd.local_addr().unwrap().to_string();
    let mut asked = Running::start(&["health", &at, "--timeout", "10m"]);
    let (mut one, _) = odd.accept().unwrap();
    let got = std::io::Read::read(&mut one, &mut [0; 1024]).unwrap();
    assert!(got > 0, "it asks, in one piece");
    std::io::Write::write_all(&mut one, b"SSH-2.0-x\r\n").unwrap();
    drop(one);
    assert_eq!(asked.end(), Some(1));
    asked.line("none of ours");
    let mut asked = Running::start(&["health", &at, "--timeout", "200ms"]);
    assert_eq!(asked.end(), Some(1));
    asked.line("nobody tells its health");
}
