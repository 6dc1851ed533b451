//! The way of a page home, from whoever has its last reference: into the owner's cache, through the ring, or to the provider.

use crate::cache::bump;
use crate::desc::{Desc, REF};
use crate::page::Tagged;
use crate::ring::{Push, Ring};
use crate::runs::Runs;
use crate::shared::Shared;
use crate::thread;
use onecopy_sync::atomic::Ordering;
use std::ptr::NonNull;

/// Gives up a reference. The last one sends the page home.
///
/// # Safety
///
/// The caller owns a reference, which is gone.
#[inline]
pub(crate) unsafe fn put(page: Tagged) {
    let desc = page.desc();
    // SAFETY: the caller's reference keeps pool and descriptor alive; `give_up` tells whether the page is ours alone.
    unsafe {
        // Read first: who has the only reference needs no atomic instruction to know that it is the last one.
        // Acquire pairs with the subtraction in `give_up`: all others are done with the page.
        if (*desc.as_ptr()).refs.load(Ordering::Acquire) == REF || Desc::give_up(desc, REF) {
            put_last(page);
        }
    }
}

/// Gives up `count` references, at least one. The last one sends the page home.
///
/// # Safety
///
/// The caller owns them, and they are gone.
#[inline]
pub(crate) unsafe fn put_many(page: Tagged, count: u64) {
    // SAFETY: the caller's references keep pool and descriptor alive; `give_up` tells whether the page is ours alone.
    unsafe {
        if count == REF {
            put(page);
        } else if Desc::give_up(page.desc(), count) {
            put_last(page);
        }
    }
}

/// Sends a page home.
///
/// # Safety
///
/// The caller has the only reference, which is gone.
#[inline]
pub(crate) unsafe fn put_last(page: Tagged) {
    // SAFETY: the reference keeps pool and descriptor alive.
    unsafe {
        let shared = (*page.desc().as_ptr()).shared;
        if (*shared.as_ptr()).owner.load(Ordering::Relaxed) == thread::current() {
            put_cached(shared, page);
        } else {
            put_ring(shared, page);
        }
    }
}

/// Owner: keeps a page in the cache, or where there is room.
///
/// # Safety
///
/// The caller is the owner, and has the only reference, which is gone.
#[inline]
pub(crate) unsafe fn put_cached(shared: NonNull<Shared>, page: Tagged) {
    // SAFETY: as the caller says. The owner's handle keeps the pool alive.
    unsafe {
        if !(*shared.as_ptr()).cache.push(page) {
            bump(&(*shared.as_ptr()).counts.cache_full, 1);
            put_ring(shared, page);
        }
    }
}

/// Sends a page home through the ring.
///
/// # Safety
///
/// The caller has the only reference, which is gone.
#[inline]
pub(crate) unsafe fn put_ring(shared: NonNull<Shared>, page: Tagged) {
    // SAFETY: the page keeps pool and descriptor alive as long as it is not in the ring.
    unsafe {
        if (*shared.as_ptr()).runs.is_some() {
            let desc = page.desc().as_ptr();
            // Relaxed: the only reference is ours.
            let len = (*desc).len.load(Ordering::Relaxed);
            return put_run(shared, (*desc).index, (u64::from(len) / (*shared.as_ptr()).page_len()) as u32);
        }
        match Ring::push(&raw const (*shared.as_ptr()).ring, (*page.desc().as_ptr()).index) {
            Push::Done => {}
            Push::Full => {
                (*shared.as_ptr()).trouble.ring_full.fetch_add(1, Ordering::Relaxed);
                Shared::release(page);
            }
            Push::Closed => Shared::release(page),
        }
    }
}

/// Brings home `pages` pages from number `first` on, of a pool whose pages go out as runs.
///
/// # Safety
///
/// The pool lives. Each of them is claimed, and has no reference but one that is the caller's, and gone.
pub(crate) unsafe fn put_run(shared: NonNull<Shared>, first: u32, pages: u32) {
    // SAFETY: a page that is claimed keeps the pool alive until it is released, or is home: after that nothing of the pool is touched.
    unsafe {
        let Some(runs) = &(*shared.as_ptr()).runs else { unreachable!("such a pool has runs") };
        runs.count(pages);
        if !Runs::put(runs, first, pages) {
            // The last one may free the pool.
            for page in first..first + pages {
                Shared::release((*shared.as_ptr()).tagged(page));
            }
        }
    }
}
