//! Frames with what belongs to them, one record each: a few bytes of header are copied, the picture stays where it was
//! made.
//!
//! ```console
//! $ cargo run --release -p onecopy --example frames
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use onecopy::advanced::chain::Chain;
use onecopy::unix::{SeqListener, SeqPacket, SharedPool, SocketAddr};

const PICTURE: usize = 1920 * 1080;
const FRAMES: u32 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let name = SocketAddr::from_abstract_name(format!("onecopy-frames-{}", std::process::id()))?;
    let listener = SeqListener::bind(&name)?;
    let viewer = thread::spawn(move || view(&listener).map_err(|error| error.to_string()));

    let camera = SeqPacket::connect(&name)?;
    // The viewer's first record: from here on both know that the other one shares memory.
    camera.recv_with_flags(&mut [0; 8], Default::default())?;
    let pool = SharedPool::new(PICTURE, 4)?;
    for number in 0..FRAMES {
        let mut picture = pool.loan_within(PICTURE, Duration::from_secs(5))?;
        picture.fill(number as u8);
        camera.send_chain(&number.to_le_bytes(), picture)?;
    }
    let stats = camera.stats();
    println!("{FRAMES} records: {} bytes by reference, {} copied", stats.referenced, stats.user_copied());
    drop(camera);
    println!("the viewer saw {} of them", viewer.join().expect("the viewer does not panic")?);
    Ok(())
}

/// Looks at one line of each picture.
fn view(listener: &SeqListener) -> Result<u32, Box<dyn Error>> {
    let (socket, _) = listener.accept()?;
    socket.send_with_flags(b"go", Default::default())?;
    let (mut number, mut seen) = ([0; 4], 0);
    loop {
        let (record, picture) = socket.recv_chain(&mut number)?;
        if record.is_end() {
            return Ok(seen);
        }
        assert_eq!((record.len, u32::from_le_bytes(number)), (4, seen));
        assert!(line(&picture)?.iter().all(|pixel| *pixel == seen as u8), "a line of another picture");
        seen += 1;
        // Dropped, the picture goes back to the camera.
    }
}

/// The first line of a picture: another process can write to it, so what we look at is our copy.
fn line(picture: &Chain) -> Result<[u8; 1920], Box<dyn Error>> {
    let mut line = [0; 1920];
    picture.peer()?.copy_to(0, &mut line, Default::default())?;
    Ok(line)
}
