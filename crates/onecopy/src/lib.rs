//! A socket layer in user space for data that is moved, not looked at.

pub use onecopy_copy as copy;
pub use onecopy_unix as unix;
pub use onecopy_unix::{Policy, Reader, RecvFlags, SendFlags};
