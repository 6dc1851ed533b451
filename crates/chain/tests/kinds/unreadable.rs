//! Memory that may not be looked at, and kinds that do not mix.

use crate::memory::{PAGE, device, host, in_use, peer};
use onecopy_chain::{Chain, ChainError, Checksum, Fragment, Kind, Mark, Placed, Sum, Writer};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{CommonPool, DeviceId, PagePool, PoolConfig};
use onecopy_sys::map::Span;
use rustix::io::Errno;
use std::io::{Read, Seek, SeekFrom};

fn part(page: onecopy_pool::Page, offset: usize, len: usize) -> Chain {
    Fragment::new(page, offset, len).unwrap().into()
}

#[test]
fn a_devices_memory_joins_no_other_and_ours_a_peers() {
    let (ours, mut theirs, gpu, other) = (host(8), peer(8), device(3, 8, 0), device(4, 8, 0));
    let mut make = |kind: usize| match kind {
        0 => part(ours.alloc().unwrap(), 0, 10),
        1 => part((0..8).find_map(|i| theirs.pages.adopt(i, i).ok()).unwrap(), 0, 10),
        2 => part(gpu.alloc().unwrap(), 0, 10),
        _ => part(other.alloc().unwrap(), 0, 10),
    };
    let kinds = [
        (Kind::Host, None),
        (Kind::Peer, None),
        (Kind::Device, Some(DeviceId(3))),
        (Kind::Device, Some(DeviceId(4))),
    ];
    for (i, (chain_kind, chain_device)) in kinds.into_iter().enumerate() {
        for (j, (added, added_device)) in kinds.into_iter().enumerate() {
            let (mut chain, mut more) = (make(i), make(j));
            assert_eq!((chain.kind(), chain.device()), (Some(chain_kind), chain_device));
            let second = make(j).fragments().next().unwrap().clone();
            let mixed = |index, added, added_device, chain, chain_device| {
                Err(ChainError::MixedKinds { index, added, added_device, chain, chain_device })
            };
            if i == j || i.max(j) < 2 {
                assert_eq!(chain.append(second.clone()), Ok(()));
                assert_eq!(chain.prepend(second), Ok(()));
                assert_eq!(chain.concat(&mut more), Ok(()));
                assert_eq!((chain.len(), more.len()), (40, 0));
                // What nobody may look at in a part, nobody may look at in the whole.
                assert_eq!(
                    chain.kind(),
                    Some(if i.min(j) == 0 && i.max(j) == 1 { Kind::Peer } else { chain_kind })
                );
                continue;
            }
            let behind = mixed(1, added, added_device, chain_kind, chain_device);
            assert_eq!(chain.append(second.clone()), behind);
            assert_eq!(chain.prepend(second), mixed(0, added, added_device, chain_kind, chain_device));
            assert_eq!(chain.concat(&mut more), behind);
            assert_eq!((chain.len(), more.len(), chain.true_size()), (10, 10, PAGE));
        }
    }
    let mut empty = make(2);
    empty.clear();
    assert_eq!(empty.kind(), None);
    empty.append(make(0).fragments().next().unwrap().clone()).unwrap();
    assert_eq!(empty.kind(), Some(Kind::Host), "an empty chain takes what comes");
    drop(empty);
    assert_eq!((in_use(&ours), theirs.pages.in_flight(), in_use(&gpu), in_use(&other)), (0, 0, 0, 0));
}

#[test]
fn a_header_of_ours_before_a_body_that_was_lent() {
    let (ours, mut theirs) = (host(8), peer(4));
    theirs.write(0, b"what a peer lends");
    let writer = Writer::new(&ours);
    let mut chain = part(theirs.pages.adopt(0, 0).unwrap(), 0, 17);
    writer.push_header(&mut chain, b"> ").unwrap();
    writer.append(&mut chain, b" <").unwrap();
    writer.append(&mut chain, b"<").unwrap();
    assert_eq!((chain.len(), chain.fragment_count(), in_use(&ours)), (22, 3, 2), "small ones share a page");
    let refused = ChainError::Unreadable { index: 0, kind: Kind::Peer, device: None };
    assert_eq!(chain.host().unwrap_err(), refused);
    assert_eq!(writer.pull_up(&mut chain, 2), Err(refused.clone()));
    assert_eq!(writer.overwrite(&mut chain, 0, b"x"), Err(refused));
    let text = b"> what a peer lends <<";
    let mut out = [0; 22];
    chain.peer().unwrap().copy_to(0, &mut out, Default::default()).unwrap();
    assert_eq!(&out, text);
    assert_eq!(chain.peer().unwrap().sum(), Sum::of(text));
    let mut file =
        std::fs::File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    assert_eq!(chain.write_to(&file).unwrap(), 22, "the kernel takes it as it is");
    let mut written = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut written).unwrap();
    assert_eq!(written, text);
    // What is cut off stays of the peer's kind, and what is begun anew does not.
    let header = chain.split_to(2).unwrap();
    assert_eq!((header.kind(), chain.range(17, 3).unwrap().kind()), (Some(Kind::Peer), Some(Kind::Peer)));
    assert_eq!(header.headroom(), PAGE - 2);
    chain.clear();
    writer.append(&mut chain, b"ours").unwrap();
    assert_eq!(chain.host().unwrap().to_vec(), b"ours");
}

#[test]
fn what_the_kernel_refuses_names_the_fragment() {
    let (pool, gpu) = (host(4), device(7, 4, 0));
    let writer = Writer::new(&pool);
    let mut chain = part(gpu.alloc().unwrap(), 100, 1000);
    chain.append(Fragment::new(gpu.alloc().unwrap(), 0, 200).unwrap()).unwrap();
    let unreadable = ChainError::Unreadable { index: 0, kind: Kind::Device, device: Some(DeviceId(7)) };
    assert_eq!(chain.host().unwrap_err(), unreadable);
    assert_eq!(chain.peer().unwrap_err(), unreadable);
    assert_eq!(chain.verify(Sum::ZERO), Err(unreadable.clone()), "checksum");
    assert_eq!(writer.pull_up(&mut chain, 10), Err(unreadable.clone()), "linearize");
    assert_eq!(writer.pull_up(&mut chain, 0), Err(unreadable.clone()));
    assert_eq!(writer.overwrite(&mut chain, 0, b"x"), Err(unreadable.clone()));
    assert_eq!(writer.collapse(&mut chain), Err(unreadable.clone()));
    chain.set_checksum(Checksum::Known(Sum::new(1))).unwrap();
    assert_eq!(chain.pull(10), Err(unreadable.clone()), "its sum cannot be adjusted");
    assert_eq!(chain.checksum(), Checksum::Known(Sum::new(1)));
    chain.set_checksum(Checksum::Partial { start: 0, offset: 16 }).unwrap();
    assert_eq!(writer.finish(&mut chain), Err(unreadable.clone()), "that is the device's to do");
    let mixed = |index| ChainError::MixedKinds {
        index,
        added: Kind::Host,
        added_device: None,
        chain: Kind::Device,
        chain_device: Some(DeviceId(7)),
    };
    assert_eq!(writer.append(&mut chain, b"x"), Err(mixed(2)));
    assert_eq!(writer.push_header(&mut chain, b"x"), Err(mixed(0)));
    assert!(writer.read_from(&mut chain, &b"x"[..], 1).is_err());
    let file = rustix::fs::memfd_create("onecopy-chain-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let error = chain.write_to(&file).unwrap_err();
    assert!(error.to_string().contains("fragment 0 is device memory (device 7)"), "{error}");
    assert_eq!(unreadable.errno(), Errno::FAULT);
    // A device pool is no pool to copy into.
    assert_eq!(Writer::new(&gpu).append(&mut Chain::new(), b"x"), Err(unreadable));
    assert_eq!((chain.len(), chain.headroom(), chain.tailroom()), (1200, 0, 0), "nobody writes there");
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn a_devices_chain_is_passed_on_in_parts() {
    let gpu = device(0, 8, 0);
    let mut chain = Chain::new();
    for i in 0..5 {
        let page = gpu.alloc().unwrap();
        // Below any copy-break: nothing is copied that cannot be read.
        let fragment = Fragment::new(page, i * 10, 100).unwrap();
        let ours = host(1);
        assert_eq!(Writer::new(&ours).append_fragment(&mut chain, fragment).unwrap(), Placed::Referenced);
    }
    chain.set_checksum(Checksum::Verified).unwrap();
    chain.insert_mark(250, Mark::EndOfRecord).unwrap();
    let record = chain.split_record().unwrap().unwrap();
    let places = |chain: &Chain| -> Vec<(usize, usize)> {
        chain.fragments().map(|fragment| (fragment.offset(), fragment.len())).collect()
    };
    assert_eq!(places(&record), [(0, 100), (10, 100), (20, 50)]);
    assert_eq!(places(&chain), [(70, 50), (30, 100), (40, 100)]);
    assert_eq!((record.checksum(), chain.checksum()), (Checksum::Verified, Checksum::Verified));
    assert_eq!((record.true_size(), chain.true_size()), (3 * PAGE, 3 * PAGE), "the cut page is held by both");
    assert_eq!(in_use(&gpu), 5);
    drop(record);
    assert_eq!(in_use(&gpu), 3);
    let again = chain.range(49, 2).unwrap();
    assert_eq!(places(&again), [(119, 1), (30, 1)]);
    drop((chain, again));
    assert_eq!(in_use(&gpu), 0);
}

#[test]
fn a_peers_bytes_are_copied_or_handed_to_the_kernel() {
    let mut theirs = peer(3);
    let bytes: Vec<u8> = (0..3 * PAGE).map(|i| (i * 7) as u8 ^ (i >> 8) as u8).collect();
    theirs.write(0, &bytes);
    let mut chain = part(theirs.pages.adopt(1, 1).unwrap(), 50, 3000);
    chain.append(Fragment::new(theirs.pages.adopt(0, 0).unwrap(), 0, PAGE).unwrap()).unwrap();
    let expected = [&bytes[PAGE + 50..][..3000], &bytes[..PAGE]].concat();
    let refused = ChainError::Unreadable { index: 0, kind: Kind::Peer, device: None };
    assert_eq!(chain.host().unwrap_err(), refused);
    let pool = host(4);
    assert_eq!(Writer::new(&pool).pull_up(&mut chain, 10), Err(refused));

    let view = chain.peer().unwrap();
    let mut out = vec![0; 4000];
    view.copy_to(1000, &mut out, Default::default()).unwrap();
    assert_eq!(out, expected[1000..5000]);
    assert_eq!(view.copy_to(chain.len(), &mut [0], Default::default()).unwrap_err().errno(), Errno::INVAL);
    view.copy_to(chain.len(), &mut [], Default::default()).unwrap();

    let mut spans = [Span::EMPTY; 4];
    assert_eq!(view.gather(2999, &mut spans), Ok(2));
    assert_eq!((spans[0].len(), spans[1].len(), spans[0].is_writable()), (1, PAGE, false));
    assert_eq!(view.gather(3000, &mut spans), Ok(1));
    assert_eq!(view.spans().map(|span| span.len()).sum::<usize>(), chain.len());

    let mut file = std::fs::File::from(
        rustix::fs::memfd_create("onecopy-chain-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
    );
    assert_eq!(chain.write_to(&file).unwrap(), chain.len());
    let mut written = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut written).unwrap();
    assert_eq!(written, expected);

    let mut shown = Vec::new();
    view.for_each_chunk(|bytes| shown.extend_from_slice(bytes));
    assert_eq!(shown, expected);

    // He may write while we hold it: that changes what comes out next, and nothing else.
    theirs.write(PAGE + 50, b"changed");
    let mut now = [0; 7];
    chain.peer().unwrap().copy_to(0, &mut now, Default::default()).unwrap();
    assert_eq!(&now, b"changed");
    drop(chain);
    assert_eq!(theirs.pages.in_flight(), 0);
}

#[test]
fn bytes_reach_a_device_in_order_though_nobody_here_looks() {
    let device = Opaque::new(DeviceId(5));
    let pool = PagePool::new(PoolConfig::new().limit(8), device.clone()).unwrap();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // As a header split would: payloads of 1000 bytes, each somewhere in a page; the pages in any order.
    let mut chain = Chain::new();
    let pages: Vec<_> = (0..5).map(|_| pool.alloc().unwrap()).collect();
    for (i, payload) in bytes.chunks(1000).enumerate() {
        let (page, offset) = (&pages[i % 5], i / 5 * 1024);
        device.copy_in(page, offset, payload.to_vec()).unwrap().wait().unwrap();
        chain.append(Fragment::new(page.clone(), offset, payload.len()).unwrap()).unwrap();
    }
    drop(pages);
    // Cut, sent again, joined.
    let mut rest = chain.split_off(12_345).unwrap();
    let mut joined = chain.range(0, 700).unwrap();
    chain.advance(700).unwrap();
    joined.concat(&mut chain).unwrap();
    joined.concat(&mut rest).unwrap();
    assert_eq!((joined.len(), joined.fragment_count()), (20_000, 20), "what was cut is one again");
    let mut arrived = Vec::new();
    for fragment in joined.fragments() {
        let ticket = device.copy_out(fragment.page(), fragment.offset(), fragment.len()).unwrap();
        arrived.extend(ticket.wait().unwrap());
    }
    assert!(arrived == bytes);
    drop(joined);
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn a_piece_has_a_slice_of_its_own_and_its_page_has_none() {
    let pool = host(4);
    let file = rustix::fs::memfd_create("onecopy-chain-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&file, b"a piece of a page").unwrap();
    let mut piece = pool.alloc_piece(17).unwrap();
    let spans = [piece.span_mut().unwrap(), Span::EMPTY];
    assert_eq!(onecopy_sys::spans::pread(&file, &spans, 0).unwrap(), 17);
    let _next = pool.alloc_piece(100).unwrap();
    let mut chain = Chain::from(Fragment::from(piece));
    // Whoever has the next piece writes into this page, but not here.
    assert_eq!((chain.kind(), chain.headroom(), chain.tailroom()), (Some(Kind::Host), 0, 0));
    assert_eq!(chain.host().unwrap().to_vec(), b"a piece of a page");
    let writer = Writer::new(&pool);
    assert_eq!(chain.split_to(8).unwrap().host().unwrap().to_vec(), b"a piece ");
    assert_eq!(writer.pull_up(&mut chain, 9).unwrap(), b"of a page");
    writer.overwrite(&mut chain, 0, b"in").unwrap();
    assert_eq!(chain.host().unwrap().to_vec(), b"in a page", "in a page of its own");
    // A part of the page that may be anybody's.
    let piece = pool.alloc_piece(64).unwrap();
    let (page, offset, len) = piece.into_parts();
    let anybodys = part(page, offset as usize, len as usize);
    assert_eq!(anybodys.kind(), Some(Kind::Peer));
    assert_eq!(anybodys.host().unwrap_err().errno(), Errno::FAULT);
}

#[test]
fn any_thread_fills_chains_from_its_reservoir() {
    let pool = CommonPool::new(host(8));
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let reservoir = pool.reservoir(2);
            std::thread::spawn(move || {
                let mut chain = Chain::new();
                let writer = Writer::new(&reservoir);
                writer.append(&mut chain, &[thread; 2 * PAGE]).unwrap();
                writer.push_header(&mut chain, b"> ").unwrap();
                chain
            })
        })
        .collect();
    for (thread, chain) in threads.into_iter().enumerate() {
        let bytes = chain.join().unwrap().host().unwrap().to_vec();
        assert!(bytes.starts_with(b"> ") && bytes[2..].iter().all(|byte| *byte as usize == thread));
    }
    let stats = pool.monitor().stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "all pages are home");
}
