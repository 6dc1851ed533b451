//! Frames of four megabytes from one process to another, without a copy: the camera writes each where the viewer will
//! look at it.
//!
//! ```console
//! $ cargo run -p onecopy --example reference                       # both, one beside the other
//! $ cargo run -p onecopy --example reference -- view unix:/tmp/camera.sock   # or each in a terminal of its own
//! $ cargo run -p onecopy --example reference -- film unix:/tmp/camera.sock
//! ```

use std::env;
use std::error::Error;
use std::thread;
use std::time::Duration;

use onecopy::unix::{Listener, SharedPool, SocketAddr, Stream};

const FRAME: usize = 4 << 20;
const FRAMES: u8 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {
            let name = SocketAddr::from_abstract_name(format!("onecopy-reference-{}", std::process::id()))?;
            let listener = Listener::bind(&name)?;
            let viewer = thread::spawn(move || view(&listener).map_err(|error| error.to_string()));
            film(&name)?;
            Ok(viewer.join().expect("the viewer does not panic")?)
        }
        ["view", name] => view(&Listener::bind(name.parse::<SocketAddr>()?)?),
        ["film", name] => film(&name.parse()?),
        _ => {
            Err("usage: reference [view NAME | film NAME], with a NAME such as unix:/tmp/camera.sock".into())
        }
    }
}

/// Sends frames.
fn film(name: &SocketAddr) -> Result<(), Box<dyn Error>> {
    let stream = Stream::connect(name)?;
    // The viewer's first byte: from here on both know that the other one shares memory.
    stream.recv_with_flags(&mut [0], Default::default())?;
    // Three frames: one with the viewer, one on its way, one that is being filmed.
    let pool = SharedPool::new(FRAME, 3)?;
    for number in 0..FRAMES {
        let mut frame = pool.loan_within(FRAME, Duration::from_secs(5))?;
        frame.fill(number);
        stream.send_loan(frame)?;
    }
    let stats = stream.stats();
    println!("sent {} bytes by reference, copied {}", stats.referenced, stats.user_copied());
    Ok(())
}

/// Looks at one line of each frame.
fn view(listener: &Listener) -> Result<(), Box<dyn Error>> {
    let (stream, _) = listener.accept()?;
    stream.send_with_flags(b"!", Default::default())?;
    let mut seen = 0;
    loop {
        let frame = stream.recv_borrowed(FRAME)?;
        if frame.is_empty() {
            break;
        }
        // Another process can write to it: what we look at is our copy of it. The rest stays where it is.
        let mut line = [0; 1920];
        frame.copy_to(&mut line);
        assert!(line.iter().all(|pixel| *pixel == line[0]), "a whole line of one frame");
        seen += frame.len();
        // Dropped, it goes back to the camera.
    }
    println!("saw {seen} bytes, copied {}", stream.stats().user_copied());
    Ok(())
}
