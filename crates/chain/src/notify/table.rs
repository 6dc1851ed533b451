//! The lanes of a context by their numbers.

use super::frontier::Frontier;
use super::ready::{self, Ready};
use super::refused::Refused;
use onecopy_sync::{Mutex, WeightedArc};
use std::sync::Arc;

/// What who makes lanes and who reaps them share.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Lanes>);

#[derive(Debug, Default)]
struct Lanes {
    lanes: Vec<Option<WeightedArc<Frontier>>>,
    /// Numbers that no lane has.
    free: Vec<u32>,
    /// Nobody reaps any more.
    gone: bool,
}

impl Table {
    /// A lane under a number that no other one has, which tells `ready`.
    ///
    /// # Errors
    ///
    /// [`Refused::Closed`]: the queue was dropped. [`Refused::Full`]: there are 2^29 lanes.
    pub(super) fn add(&self, capacity: u32, ready: &Arc<Ready>) -> Result<WeightedArc<Frontier>, Refused> {
        let mut table = self.0.lock();
        if table.gone {
            return Err(Refused::Closed);
        }
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.lanes.len() as u32 >= ready::MAX_ITEMS => {
                return Err(Refused::Full { capacity: ready::MAX_ITEMS });
            }
            None => {
                table.lanes.push(None);
                table.lanes.len() as u32 - 1
            }
        };
        let lane = WeightedArc::new(Frontier::new(capacity, ready.clone(), index));
        table.lanes[index as usize] = Some(lane.clone());
        Ok(lane)
    }

    /// The lane `index`.
    pub(super) fn get(&self, index: u32) -> Option<WeightedArc<Frontier>> {
        self.0.lock().lanes[index as usize].clone()
    }

    /// The lane `index` is over: another one may get its number.
    pub(super) fn remove(&self, index: u32) {
        let mut table = self.0.lock();
        table.lanes[index as usize] = None;
        table.free.push(index);
    }

    /// Nobody reaps any more: there will be no more lanes, and those that there are send no more.
    pub(super) fn shut(&self) {
        let mut table = self.0.lock();
        table.gone = true;
        let lanes = std::mem::take(&mut table.lanes);
        drop(table);
        for lane in lanes.iter().flatten() {
            lane.shut();
        }
    }
}
