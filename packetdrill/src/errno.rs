//! What a call comes to, as the kernel's would.

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

/// What a call returns.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// Why a call is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has failed.
    Failed(Errno),
    /// It has to wait: a blocking call sleeps, another one fails with EAGAIN.
    Wait,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}
