//! The code of docs/devmem.md, as it stands there. (It takes a TAP device and a peer to run: what it calls is run by crates/net/tests/devmem.)

#![allow(
    unused_variables,
    clippy::needless_borrow,
    clippy::needless_borrows_for_generic_args,
    reason = "a guide ends where the reader's own program begins, and owns what functions here borrow"
)]

use onecopy::advanced::pool::{DeviceId, DeviceMemory};
use onecopy::devmem::{Frags, TxRange};
use onecopy::{Stack, tcp::Stream};
use std::io::IoSlice;

type Done = Result<(), Box<dyn std::error::Error>>;

const GUIDE: &str = include_str!("../../../docs/devmem.md");
const HERE: &str = include_str!("devmem_guide.rs");

#[rustfmt::skip]
fn receives() -> Done {
    use onecopy::advanced::pool::{DeviceId, DeviceMemory};
    use onecopy::{Stack, tcp::Listener};

    let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;

    // 1. Memory: 4,096 pages of 4 KiB.
    let memory = DeviceMemory::opaque(4096, DeviceId(0))?;

    // 2. Two receive queues. Flows to port 5201 come to queue 1, all others to queue 0.
    stack.set_queues(2)?;
    stack.steer("10.0.0.2:5201".parse()?, 1)?;

    // 3. Bind. Dropped, the binding is undone.
    let binding = stack.bind_rx(&memory, &[1])?;

    // 4. Connections are made as ever.
    let listener = Listener::bind(&stack, "10.0.0.2:5201".parse()?)?;
    let (stream, _) = listener.accept()?;

    // 5. Receive references.
    loop {
        let frags = stream.recv_frags(1 << 20)?;
        if frags.is_empty() {
            break; // the peer sends no more
        }
        for frag in frags.device() {
            // frag.len bytes lie at frag.offset of the memory of binding frag.binding.
        }
        // 6. Dropped, the tokens are given back, and the pages are free for more.
    }
    Ok(())
}

#[rustfmt::skip]
fn refills(stream: &Stream) -> Done {
    let mut ring = stream.refill_ring(1024)?; // room for as many tokens as the program has at a time
    loop {
        let device = stream.recv_frags(1 << 20)?.into_device();
        if device.is_empty() {
            break;
        }
        // Whatever the device does with the bytes where they lie; and then, from any one thread:
        ring.push_all(&device);
    }
    Ok(())
}

#[rustfmt::skip]
fn sends(stack: &Stack, stream: &Stream) -> Done {
    // All of the memory's pages are the binding's: what lies in them is the program's to say.
    let memory = DeviceMemory::opaque(4096, DeviceId(1))?;
    let binding = stack.bind_tx(&memory)?;
    memory.write_at(5000, &[IoSlice::new(b"hello from a device")])?;

    // Offsets into the memory, as many ranges as there are.
    let sent = stream.send_device(&binding, &[TxRange { offset: 5000, len: 19 }])?;
    let (_, how) = sent.wait(); // acknowledged: from here on the memory may be written again
    assert!(!how.dropped);
    Ok(())
}

#[rustfmt::skip]
fn stores(memory: &DeviceMemory, frags: &Frags, out: &std::fs::File) -> Done {
    use onecopy::storage::{Extent, Storage};

    let mut storage = Storage::new()?; // io_uring, and 2 MiB of pages that are registered with it
    let file = std::fs::File::open("weights.bin")?;
    let moved = storage.read(&file, 0, &memory, Extent { at: 0, len: file.metadata()?.len() })?;

    // What was received, to a file: the fragments' places, in order.
    let places: Vec<Extent> = frags.device().iter().map(|frag| Extent { at: frag.offset, len: frag.len.into() }).collect();
    storage.write(&memory, &places, &out, 0)?;
    Ok(())
}

#[test]
fn the_guides_code_is_what_compiles_here() {
    // (What has to be there for it to compile.)
    let _ = (receives, refills, sends, stores);
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let here = squeezed(HERE);
    let blocks: Vec<&str> =
        GUIDE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        assert!(here.contains(&squeezed(block)), "put this here, too, and see that it compiles:\n{block}");
    }
}
