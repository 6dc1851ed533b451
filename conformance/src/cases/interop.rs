//! Peers that know nothing of the library: std's sockets, curl, socat.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use crate::case::Source::Both;
use crate::case::{Case, Ctx};
use crate::cases::transfer::{at_once, recv_chopped, send_chopped, whole};
use crate::impls::{Name, Rx};
use crate::stop::{Outcome, Stop};
use crate::tools::{Pattern, rx, tx};

pub const CASES: &[Case] = &[
    Case::same(
        "interop.std_client",
        "std's UnixStream talks to the listener",
        Both,
        "\"hi\", \"ho\", end",
        std_client,
    ),
    Case::same(
        "interop.std_server",
        "the client talks to std's UnixListener",
        Both,
        "\"hi\", \"ho\", end",
        std_server,
    ),
    Case::same("interop.std_bulk", "std's UnixStream, a megabyte each way", Both, "intact, intact", std_bulk),
    Case::same("interop.curl", "curl --unix-socket talks to the listener", Both, "200, body intact", curl),
    Case::same("interop.socat", "socat talks to the listener", Both, "echoed", socat),
];

/// The path of a name in the case's folder, for std.
fn std_path(name: &Name) -> &std::path::Path {
    match name {
        Name::Path(p) => p,
        _ => std::path::Path::new(""),
    }
}

fn text(b: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(b))
}

fn std_client(cx: &Ctx<'_>) -> Outcome {
    let name = cx.path("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    let mut client = UnixStream::connect(std_path(&name))?;
    client.write_all(b"hi")?;
    let conn = server.accept()?;
    let there = rx(&*conn, 9, Rx::default())?;
    tx(&*conn, b"ho")?;
    drop(conn);
    let mut back = Vec::new();
    client.read_to_end(&mut back)?;
    Ok(format!("{there}, {}, end", text(&back)))
}

fn std_server(cx: &Ctx<'_>) -> Outcome {
    let name = cx.path("s");
    let server = UnixListener::bind(std_path(&name))?;
    let client = cx.imp.connect(cx.kind, &name)?;
    tx(&*client, b"hi")?;
    let (mut conn, _) = server.accept()?;
    let mut there = [0; 9];
    let n = conn.read(&mut there)?;
    conn.write_all(b"ho")?;
    drop(conn);
    Ok(format!(
        "{}, {}, {}",
        text(&there[..n]),
        rx(&*client, 9, Rx::default())?,
        rx(&*client, 9, Rx::default())?
    ))
}

fn std_bulk(cx: &Ctx<'_>) -> Outcome {
    const SUM: usize = 1 << 20;
    let name = cx.path("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    let client = UnixStream::connect(std_path(&name))?;
    let conn = server.accept()?;
    let (conn, client) = (&*conn, &client);
    let (there, back) = (Pattern(81), Pattern(82));
    at_once(vec![
        (conn, Box::new(move || send_chopped(conn, back, 0, SUM, 83))),
        (conn, Box::new(move || recv_chopped(conn, there, SUM, 84))),
        (conn, Box::new(move || Ok((&mut &*client).write_all(&there.bytes(0, SUM))?))),
        (
            conn,
            Box::new(move || {
                let mut all = vec![0; SUM];
                (&mut &*client).read_exact(&mut all)?;
                back.check(0, &all)
            }),
        ),
    ])?;
    Ok("intact, intact".to_owned())
}

/// Whether a program is there to be run.
fn have(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn curl(cx: &Ctx<'_>) -> Outcome {
    if !have("curl") {
        return Err(Stop::Lacking("curl is not installed"));
    }
    let name = cx.path("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    let body: Vec<u8> = Pattern(91).bytes(0, 200_000);
    let curl = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--noproxy",
            "*",
            "--max-time",
            "4",
            "--write-out",
            "\n%{http_code}",
        ])
        .arg("--unix-socket")
        .arg(std_path(&name))
        .arg("http://localhost/body")
        .stdout(Stdio::piped())
        .spawn()?;
    let conn = server.accept()?;
    let mut head = Vec::new();
    let mut buf = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        match conn.recv(&mut buf, Rx::default())? {
            0 => return Ok("curl left before its request was whole".to_owned()),
            n => head.extend_from_slice(&buf[..n]),
        }
    }
    whole(&*conn, format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())?;
    whole(&*conn, &body)?;
    let out = curl.wait_with_output()?.stdout;
    let (got, code) = out.split_at(out.len().saturating_sub(4));
    Ok(format!(
        "{}, body {}",
        String::from_utf8_lossy(code).trim(),
        if got == body { "intact".to_owned() } else { format!("garbled, {} bytes", got.len()) }
    ))
}

fn socat(cx: &Ctx<'_>) -> Outcome {
    if !have("socat") {
        return Err(Stop::Lacking("socat is not installed"));
    }
    let name = cx.path("s");
    let server = cx.imp.listen(cx.kind, &name, None)?;
    let mut socat = Command::new("socat")
        .args(["-t", "3", "-"])
        .arg(format!("UNIX-CONNECT:{}", std_path(&name).display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut into = socat.stdin.take().ok_or_else(|| Stop::broken("no pipe to socat"))?;
    let conn = server.accept()?;
    let sent = Pattern(95).bytes(0, 100_000);
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let r = into.write_all(&sent);
            drop(into);
            r
        });
        let echo = s.spawn(|| {
            let mut buf = [0; 5_000];
            loop {
                match conn.recv(&mut buf, Rx::default())? {
                    0 => return Ok::<(), Stop>(conn.shutdown(Shutdown::Write)?),
                    n => whole(&*conn, &buf[..n])?,
                }
            }
        });
        let out = socat.wait_with_output()?.stdout;
        writer.join().map_err(|_| Stop::broken("the writer panicked"))??;
        echo.join().map_err(|_| Stop::broken("the echo panicked"))??;
        Ok(if out == sent { "echoed".to_owned() } else { format!("{} bytes, garbled", out.len()) })
    })
}
