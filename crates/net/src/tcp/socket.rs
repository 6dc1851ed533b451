//! What streams and listeners are for the stack.

use crate::socket::Protocol;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Bound, Stack};
use onecopy_inet::tcp::{Error, Readiness, Settings};
use onecopy_socket::registry::{self, Type};
use std::fmt;

/// A socket of TCP.
pub(super) type Socket = crate::socket::Socket<Tcp>;

pub(crate) enum Tcp {}

impl Protocol for Tcp {
    type Cause = Error;
    type Settings = Settings;
    const TYPE: Type = Type::Stream;
    const NAME: registry::Protocol = registry::Protocol::Tcp;

    fn open(inet: &mut Stack) -> Result<Id, Error> {
        inet.tcp_open()
    }

    fn close(inet: &mut Stack, now: u64, id: Id) {
        inet.tcp_close(now, id);
    }

    fn addresses(inet: &Stack, id: Id) -> Bound {
        inet.tcp_addresses(id)
    }

    fn readiness(inet: &Stack, id: Id) -> Readiness {
        inet.tcp_readiness(id)
    }

    fn take_error(inet: &mut Stack, id: Id) -> Option<Error> {
        inet.tcp_take_error(id)
    }

    fn settings(inet: &Stack, id: Id) -> Option<&Settings> {
        inet.tcp_settings(id)
    }

    fn set(inet: &mut Stack, now: u64, id: Id, change: impl FnOnce(&mut Settings)) -> Result<(), Error> {
        inet.tcp_set(now, id, change)
    }

    fn moves(inet: &Stack, id: Id) -> (u8, u64, u64) {
        let state = inet.tcp_state(id).map_or(0, |state| state as u8);
        match inet.tcp_connection(id) {
            Some(connection) => (state, connection.receiver().available(), connection.queued()),
            None => (state, inet.tcp_waiting(id) as u64, 0),
        }
    }

    fn state(inet: &Stack, id: Id) -> impl fmt::Debug {
        inet.tcp_state(id)
    }
}
