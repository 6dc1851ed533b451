//! What a program closes while other threads may be in a call of it.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use crate::call;
use crate::loans::lock;

/// Something that is there until it is closed, and then until the last call of it has returned.
///
/// Whoever lets go of it last is detached: its end may wait, for what was sent to be acknowledged, or for a lock that somebody has who waits for the interpreter. So the lock
/// here is held for a look alone.
pub struct Closable<T: Send + Sync>(Mutex<Option<Arc<T>>>);

impl<T: Send + Sync> Closable<T> {
    pub fn new(value: T) -> Closable<T> {
        Closable(Mutex::new(Some(Arc::new(value))))
    }

    /// For one call; None once it was closed.
    pub fn get(&self) -> Option<Using<T>> {
        lock(&self.0).clone().map(|value| Using(Some(value)))
    }

    pub fn close(&self) {
        let value = lock(&self.0).take();
        drop(Using(value));
    }

    pub fn is_closed(&self) -> bool {
        lock(&self.0).is_none()
    }
}

impl<T: Send + Sync> Drop for Closable<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a call uses.
pub struct Using<T: Send + Sync>(Option<Arc<T>>);

impl<T: Send + Sync> Deref for Using<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // (Only a drop takes it.)
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Send + Sync> Drop for Using<T> {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            call::let_go(last);
        }
    }
}
