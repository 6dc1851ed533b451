//! What a script runs on.

use crate::wire::Family;
use std::collections::BTreeMap;

/// A host under test. Its calls never wait: what blocks is asked for again when something has happened.
pub(crate) trait Host {
    /// Over which IP.
    fn family(&self) -> Family;
    /// The time, in nanoseconds of any steady clock.
    fn now(&self) -> u64;
    /// Lets time pass until `until`, or something to be looked at before.
    fn pass(&mut self, until: u64) -> Result<(), String>;
    /// The next packet that it has sent, and when.
    fn sent(&mut self) -> Result<Option<(u64, Vec<u8>)>, String>;
    /// A packet for it.
    fn receive(&mut self, packet: &[u8]) -> Result<(), String>;
    /// Whether checksums of what it sends are finished.
    fn finishes_checksums(&self) -> bool;
    /// Whether what has gone wrong may come of this machine having been too busy; and how far times may be off, in nanoseconds.
    fn tolerance(&self) -> u64;
    /// The script comes to an event that should have been at `target`.
    fn comes_to(&mut self, target: u64);

    /// Sets a sysctl, by its name with dots.
    fn sysctl(&mut self, name: &str, value: &str) -> Result<(), String>;
    /// Calls, with errno where they fail.
    fn socket(&mut self) -> Result<usize, i32>;
    fn bind(&mut self, socket: usize, port: u16) -> Result<(), i32>;
    fn listen(&mut self, socket: usize, backlog: i32) -> Result<(), i32>;
    fn connect(&mut self, socket: usize, port: u16) -> Result<(), i32>;
    fn accept(&mut self, socket: usize) -> Result<(usize, u16), i32>;
    fn read(&mut self, socket: usize, len: usize, flags: i32) -> Result<Vec<u8>, i32>;
    fn write(&mut self, socket: usize, bytes: &[u8], flags: i32) -> Result<usize, i32>;
    /// Connects to `port` with these bytes in the SYN, if that may be: how many went (sendto(2) with MSG_FASTOPEN, of a socket that does not
    /// wait). `flags` are others than that.
    fn connect_with(&mut self, socket: usize, port: u16, bytes: &[u8], flags: i32) -> Result<usize, i32>;
    fn shutdown(&mut self, socket: usize, how: i32) -> Result<(), i32>;
    fn close(&mut self, socket: usize);
    /// Of poll(2): POLLIN and the like.
    fn poll(&mut self, socket: usize, events: i16) -> i16;
    /// Bytes to be read (SIOCINQ).
    fn readable(&mut self, socket: usize) -> Result<i32, i32>;
    fn set(&mut self, socket: usize, level: i32, option: i32, value: Setting<'_>) -> Result<(), i32>;
    fn get(&mut self, socket: usize, level: i32, option: i32) -> Result<i32, i32>;
    /// TCP_INFO, by the names of its fields behind `tcpi_`.
    fn info(&mut self, socket: usize) -> Result<BTreeMap<&'static str, u64>, i32>;
}

/// What an option is set to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting<'a> {
    Number(i32),
    Text(&'a str),
    /// struct linger: on, and seconds.
    Linger(bool, u16),
}
