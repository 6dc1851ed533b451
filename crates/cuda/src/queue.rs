//! What waits to be copied, what is being copied, and what becomes of it.
//!
//! A part that was submitted is in one of three places, in this order: `pending`, a batch in `flying`, gone home. It leaves `flying` only when the batch's event
//! has completed without an error. Where one has failed, all that is behind it is done again with it: a page of the device may have been
//! given to two batches (TCP has thrown the first one's bytes away), and then the second one's have to be written last.

use crate::context::{Buffer, Context, Current, Event, Pinned};
use crate::error::Error;
use crate::lane::{Lane, MOST, Piece};
use crate::report::Report;
use crate::way::{Costs, Way};
use onecopy_pool::Part;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;
use std::sync::Arc;

/// Bytes that are put into the stream at once.
const BATCH: usize = 256 << 10;

/// Batches under way; who has more waits for the first of them.
const FLYING: usize = 32;

struct Batch {
    pieces: Vec<Piece>,
    tables: Vec<Pinned>,
    /// None only of one that failed before it had any: all under way are done again then.
    event: Option<Arc<Event>>,
}

/// What is waited for without a lock.
pub(crate) type Wait = (Arc<Context>, Arc<Event>);

pub(crate) struct Queue {
    context: Arc<Context>,
    lane: Lane,
    buffer: Buffer,
    costs: Costs,
    forced: Option<Way>,
    pending: Vec<Piece>,
    pending_bytes: usize,
    flying: VecDeque<Batch>,
    events: Vec<Arc<Event>>,
    /// What the device may still read, though nobody knows whether it does.
    kept: Vec<Batch>,
    lost: Option<Error>,
    pub report: Report,
}

impl Queue {
    pub fn new(context: Arc<Context>, len: usize, costs: Costs, forced: Option<Way>) -> Result<Queue, Error> {
        let current = context.enter()?;
        let (buffer, (lane, no_kernel)) = (current.buffer(len)?, Lane::new(&current)?);
        drop(current);
        let report = Report {
            device: context.name().to_owned(),
            driver: context.driver().version(),
            no_kernel: no_kernel.map(|error| error.to_string()),
            costs: costs.clone(),
            ..Report::default()
        };
        Ok(Queue {
            context,
            lane,
            buffer,
            costs,
            forced,
            pending: Vec::new(),
            pending_bytes: 0,
            flying: VecDeque::new(),
            events: Vec::new(),
            kept: Vec::new(),
            lost: None,
            report,
        })
    }

    /// Where the memory is on the device.
    pub fn address(&self) -> u64 {
        self.buffer.at()
    }

    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The counts, as they are.
    pub fn report(&self) -> Report {
        let landing = &self.lane.landing;
        Report {
            copies: self.lane.asked.copies,
            launches: self.lane.asked.launches,
            registered: (landing.registered, landing.bytes()),
            not_registered: landing.refused,
            lost: self.lost.as_ref().map(ToString::to_string),
            ..self.report.clone()
        }
    }

    fn whole(&self) -> Result<(), Error> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The context, to be entered. One that cannot be entered any more is of a device that has failed.
    fn context(&mut self) -> Result<Arc<Context>, Error> {
        self.whole()?;
        let context = Arc::clone(&self.context);
        let entered = context.enter().map(drop);
        match entered.or_else(|_| context.enter().map(drop)) {
            Ok(()) => Ok(context),
            Err(error) => self.lose(error).map(|()| context),
        }
    }

    /// Takes parts for place `at` and what follows, which the caller knows to be inside.
    pub fn submit(&mut self, at: u64, parts: Vec<Part>) -> Result<(), Error> {
        let context = self.context()?;
        let current = context.enter()?;
        self.reap(&current)?;
        let mut to = self.buffer.at() + at;
        for part in parts {
            let len = part.len();
            self.pending.push(Piece { part, to });
            self.pending_bytes += len;
            to += len as u64;
            if self.pending.len() == MOST {
                self.flush(&current)?;
            }
        }
        if self.pending_bytes >= BATCH { self.flush(&current) } else { Ok(()) }
    }

    /// Puts what is pending into the stream.
    fn flush(&mut self, current: &Current<'_>) -> Result<(), Error> {
        self.whole()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.flying.len() >= FLYING {
            self.report.waited += 1;
            if let Some(event) = self.flying.front().and_then(|batch| batch.event.as_ref()) {
                // How it ended is asked again below.
                let _ = event.synchronize(current);
            }
            self.reap(current)?;
        }
        let (pieces, bytes) = (mem::take(&mut self.pending), mem::take(&mut self.pending_bytes));
        let runs = self.lane.runs(current, &pieces);
        let chosen = self.lane.choose(&runs, &self.costs, self.forced);
        let mut tables = Vec::new();
        let mut put = |lane: &mut Lane, way| {
            // SAFETY: the pieces' pages are host memory (`Part::bytes`), which nobody writes while there is a reference. The batch that they go to keeps
            // them, and the tables, until its event has completed; in all other cases they are kept for good. They go to where
            // `submit` was told, inside of the buffer.
            unsafe { lane.put(current, way, &runs, &mut tables) }
        };
        let mut way = chosen;
        let mut done = put(&mut self.lane, way);
        if done.is_err() {
            // Done twice it is no worse: the same bytes to the same places, in order.
            way = Way::Copies;
            self.report.fell_back += 1;
            let _ = self.lane.stream.synchronize(current);
            done = put(&mut self.lane, way);
        }
        let event = done.and_then(|()| self.mark(current));
        // What fails here is done again by copies.
        let way = if event.is_ok() { way } else { Way::Copies };
        self.report.batches += 1;
        self.report.pieces += runs.len() as u64;
        self.report.bytes[way as usize] += bytes as u64;
        let pageable = runs.iter().filter(|run| run.pinned.is_none()).map(|run| run.len as u64);
        self.report.pageable += pageable.sum::<u64>();
        match event {
            Ok(event) => {
                self.flying.push_back(Batch { pieces, tables, event: Some(event) });
                Ok(())
            }
            Err(_) => {
                // Some of it may be under way all the same.
                self.flying.push_back(Batch { pieces, tables, event: None });
                self.again(current)
            }
        }
    }

    /// An event behind all that was put into the stream.
    fn mark(&mut self, current: &Current<'_>) -> Result<Arc<Event>, Error> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => Arc::new(current.event()?),
        };
        event.record(current, &self.lane.stream)?;
        Ok(event)
    }

    /// Lets go of what is copied.
    fn reap(&mut self, current: &Current<'_>) -> Result<(), Error> {
        while let Some(batch) = self.flying.front() {
            match batch.event.as_ref().map_or(Ok(false), |event| event.query(current)) {
                Ok(true) => {
                    let Some(Batch { pieces, tables, event }) = self.flying.pop_front() else { break };
                    drop(pieces);
                    self.lane.take_back(tables);
                    // One that somebody waits for is not recorded again.
                    let ours = event.filter(|event| Arc::strong_count(event) == 1);
                    self.events.extend(ours.filter(|_| self.events.len() < FLYING));
                }
                Ok(false) => break,
                Err(_) => return self.again(current),
            }
        }
        Ok(())
    }

    /// The first batch under way has failed: it, and all behind it, are done again, each by itself. If one fails again, the memory is lost.
    fn again(&mut self, current: &Current<'_>) -> Result<(), Error> {
        // Whatever is still under way comes to its end before it is done again. If this fails it has ended, too.
        let _ = self.lane.stream.synchronize(current);
        while let Some(mut batch) = self.flying.pop_front() {
            let runs = self.lane.runs(current, &batch.pieces);
            let lane = &mut self.lane;
            // SAFETY: as in `flush`; they are in a batch as before.
            let put = unsafe { lane.put(current, Way::Copies, &runs, &mut batch.tables) };
            match put.and_then(|()| lane.stream.synchronize(current)) {
                Ok(()) => {
                    self.report.redone += 1;
                    self.lane.take_back(mem::take(&mut batch.tables));
                }
                Err(error) => {
                    self.flying.push_front(batch);
                    return self.lose(error);
                }
            }
        }
        Ok(())
    }

    fn lose(&mut self, why: Error) -> Result<(), Error> {
        self.kept.extend(self.flying.drain(..));
        let pending: Vec<Piece> = mem::take(&mut self.pending);
        self.report.kept = self.kept.iter().map(|batch| batch.pieces.len() as u64).sum();
        // Those were never put into the stream.
        drop(pending);
        self.lost = Some(why.clone());
        Err(why)
    }

    /// Begins to wait for all that was submitted: the event to wait for, without a lock; then [`Queue::settled`].
    pub fn settle(&mut self) -> Result<Option<Wait>, Error> {
        let context = self.context()?;
        let current = context.enter()?;
        self.flush(&current)?;
        self.reap(&current)?;
        let event = self.flying.back().and_then(|batch| batch.event.clone());
        self.report.waited += u64::from(event.is_some());
        drop(current);
        Ok(event.map(|event| (context, event)))
    }

    /// The event has completed, or failed.
    pub fn settled(&mut self, event: &Arc<Event>) -> Result<(), Error> {
        let context = self.context()?;
        let current = context.enter()?;
        self.reap(&current)?;
        let same = |batch: &Batch| batch.event.as_ref().is_some_and(|other| Arc::ptr_eq(other, event));
        if !self.flying.iter().any(same) {
            return Ok(());
        }
        // The wait has failed, and not what was waited for.
        match self.lane.stream.synchronize(&current) {
            Ok(()) => self.reap(&current),
            Err(_) => self.again(&current),
        }
    }

    /// Copies slices to place `at`, which the caller knows to be inside, and waits.
    pub fn write(&mut self, at: u64, from: &[IoSlice<'_>]) -> Result<(), Error> {
        self.at_once(|lane, current, base| {
            let mut to = base + at;
            for slice in from.iter().filter(|slice| !slice.is_empty()) {
                // SAFETY: the slice is borrowed until `at_once` has waited for the stream. Where that fails, it has failed for good: the context runs nothing
                // any more (the driver API's reference on cuStreamSynchronize's errors).
                unsafe { lane.stream.copy_in(current, to, slice.as_ptr(), slice.len())? };
                to += slice.len() as u64;
            }
            Ok(())
        })?;
        self.report.direct += from.iter().map(|slice| slice.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Copies what lies at place `at` out, and waits.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        if into.is_empty() {
            return self.whole();
        }
        self.at_once(|lane, current, base| {
            // SAFETY: as in `write`; the slice is borrowed mutably.
            unsafe { lane.stream.copy_out(current, into.as_mut_ptr(), base + at, into.len()) }
        })?;
        self.report.direct += into.len() as u64;
        Ok(())
    }

    /// Copies pieces of the memory to an address of the device, one behind the other, behind all that was submitted.
    ///
    /// # Safety
    ///
    /// `to` is an address of this device, and as many bytes are there.
    pub unsafe fn collect(&mut self, mut to: u64, pieces: &[(u64, usize)]) -> Result<(), Error> {
        self.at_once(|lane, current, base| {
            for (at, len) in pieces.iter().filter(|(_, len)| *len > 0) {
                // SAFETY: as the caller promises, who knows the pieces to be inside of the memory.
                unsafe { lane.stream.copy_within(current, to, base + at, *len)? };
                to += *len as u64;
            }
            Ok(())
        })
    }

    /// Does something in the stream behind all that was submitted, and waits for it.
    fn at_once(
        &mut self,
        act: impl FnOnce(&mut Lane, &Current<'_>, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let context = self.context()?;
        let current = context.enter()?;
        self.flush(&current)?;
        if let Some(event) = self.flying.back().and_then(|batch| batch.event.as_ref()) {
            // What has failed of these is done again before this, not behind it.
            let _ = event.synchronize(&current);
            self.reap(&current)?;
        }
        if !self.flying.is_empty() {
            self.again(&current)?;
        }
        let acted = act(&mut self.lane, &current, self.buffer.at());
        // Also where it has failed: a part of it may be under way.
        let waited = self.lane.stream.synchronize(&current);
        acted.and(waited)
    }

    /// Has what comes next wait for the program's stream; or the other way round (`before`).
    ///
    /// # Safety
    ///
    /// `stream` is a CUstream of this context, or null for its default stream.
    pub unsafe fn order(&mut self, stream: *mut std::ffi::c_void, before: bool) -> Result<(), Error> {
        let context = self.context()?;
        let current = context.enter()?;
        let event = current.event()?;
        if before {
            self.flush(&current)?;
            event.record(&current, &self.lane.stream)?;
            // SAFETY: as the caller promises.
            unsafe { event.hold_up(&current, stream) }
        } else {
            // What was submitted before need not wait.
            self.flush(&current)?;
            // SAFETY: as the caller promises.
            unsafe { event.record_other(&current, stream)? };
            self.lane.stream.wait_for(&current, &event)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // What was submitted is no longer asked for; what is under way is waited for.
        let context = Arc::clone(&self.context);
        let ended = context.enter().and_then(|current| self.lane.stream.synchronize(&current));
        if ended.is_err() && !self.flying.is_empty() {
            self.kept.extend(self.flying.drain(..));
        }
        if !self.kept.is_empty() {
            // The device may still read them: neither they nor their tables are anybody's again.
            mem::forget(mem::take(&mut self.kept));
        }
    }
}
