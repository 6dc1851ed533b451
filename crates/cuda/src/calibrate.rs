//! What each way takes on a device, by the device's own clock.

use crate::context::{Buffer, Context, Current, Event, Pinned};
use crate::error::Error;
use crate::lane::{Lane, Place, Run, SCRATCH};
use crate::way::{Costs, Shape, Way};
use onecopy_sync::Mutex;
use std::sync::{Arc, LazyLock};

/// Pieces and bytes of each. The largest lie within what a span may have.
const SHAPES: [(u32, u32); 8] =
    [(1, 4096), (4, 4096), (16, 4096), (64, 4096), (256, 4096), (16, 1024), (128, 1024), (16, 65536)];

/// Each is done so often; the fastest counts.
const ROUNDS: usize = 4;

/// What was measured in this process: by library and ordinal.
type Known = Vec<(String, u32, Costs)>;
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(|| Mutex::new(Vec::new()));

/// What the ways cost on that device: measured once in a process, some milliseconds long. Nothing where there is no kernel, and so one way only.
pub(crate) fn costs(context: &Arc<Context>, ordinal: u32) -> Result<Costs, Error> {
    let library = context.driver().library().to_owned();
    let mut known = KNOWN.lock();
    if let Some((.., costs)) = known.iter().find(|(of, at, _)| (of, *at) == (&library, ordinal)) {
        return Ok(costs.clone());
    }
    let costs = measure(&context.enter()?)?;
    known.push((library, ordinal, costs.clone()));
    Ok(costs)
}

fn measure(current: &Current<'_>) -> Result<Costs, Error> {
    let (mut lane, no_kernel) = Lane::new(current)?;
    if no_kernel.is_some() {
        return Ok(Costs::default());
    }
    let (from, to) = (current.pinned(SCRATCH)?, current.buffer(SCRATCH)?);
    let events = [current.event()?, current.event()?];
    let measured =
        SHAPES.iter().map(|(pieces, len)| shape(current, &mut lane, &events, (&from, &to), *pieces, *len));
    let shapes: Result<Vec<Shape>, Error> = measured.collect();
    // Before the memory goes.
    let ended = lane.stream.synchronize(current);
    match (shapes, ended) {
        (Ok(shapes), Ok(())) => Ok(Costs { shapes }),
        (Err(error), _) | (_, Err(error)) => {
            // The device may still read it.
            std::mem::forget(from);
            Err(error)
        }
    }
}

fn shape(
    current: &Current<'_>,
    lane: &mut Lane,
    events: &[Event; 2],
    (from, to): (&Pinned, &Buffer),
    pieces: u32,
    len: u32,
) -> Result<Shape, Error> {
    let run = |index: u32| {
        let offset = index as usize * len as usize;
        let pinned = Some(Place { region: from.device(), offset });
        Run {
            from: from.as_ptr().wrapping_add(offset),
            len: len as usize,
            to: to.at() + offset as u64,
            pinned,
        }
    };
    let runs: Vec<Run> = (0..pieces).map(run).collect();
    let mut ns = [f64::INFINITY; 4];
    let batches = lane.stream.has_batches();
    for way in Way::ALL.into_iter().filter(|way| *way != Way::Batch || batches) {
        for _ in 0..ROUNDS {
            let mut tables = Vec::new();
            events[0].record(current, &lane.stream)?;
            // SAFETY: `from` is written by nobody, has all of the runs, as has `to`, and is kept until the stream has ended, as are the tables. Each run has
            // a place of its own.
            let put = unsafe { lane.put(current, way, &runs, &mut tables) };
            if way == Way::Batch && put.is_err() {
                // Others do the same; a driver that has it need not have it for this device.
                ns[way as usize] = f64::INFINITY;
                break;
            }
            let ended = put.and_then(|()| events[1].record(current, &lane.stream));
            let ended = ended.and_then(|()| lane.stream.synchronize(current));
            if let Err(error) = ended {
                std::mem::forget(tables);
                return Err(error);
            }
            lane.take_back(tables);
            let took = events[1].since(current, &events[0])?;
            ns[way as usize] = ns[way as usize].min(took);
        }
    }
    Ok(Shape { pieces, len, ns })
}
