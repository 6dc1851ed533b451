//! Lanes that are made when they are needed.

use super::context::Context;
use super::lane::{Config, Lane};
use super::refused::Refused;

/// The place of a socket's lane, which is made with its first send: a socket that sends nothing without a copy, or nothing for now, pays
/// for no slots. 8 bytes.
#[derive(Debug, Default)]
pub struct LazyLane(Option<Box<Lane>>);

const _: () = assert!(size_of::<LazyLane>() == 8);

impl LazyLane {
    /// Without a lane.
    pub const fn new() -> LazyLane {
        LazyLane(None)
    }

    /// The lane, made now if there is none.
    ///
    /// # Errors
    ///
    /// As [`Context::lane`].
    #[inline]
    pub fn get(&mut self, context: &Context, config: Config) -> Result<&mut Lane, Refused> {
        match &mut self.0 {
            Some(lane) => Ok(lane),
            none @ None => Ok(none.insert(Box::new(context.lane(config)?))),
        }
    }

    /// The lane, if there is one.
    pub fn made(&self) -> Option<&Lane> {
        self.0.as_deref()
    }

    /// Gives the lane up if it is idle: all of its completions are reaped. Whether there is none now. The next one counts its sends from 0,
    /// maybe under another number, as [`Completion::lane`](super::Completion::lane) has it.
    pub fn rest(&mut self) -> bool {
        if self.0.as_ref().is_some_and(|lane| lane.outstanding() == 0) {
            self.0 = None;
        }
        self.0.is_none()
    }
}
