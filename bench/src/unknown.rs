//! What was asked for and is not there.

use std::fmt;

/// What was asked for is not there: a row, a case or an engine. Says what is.
#[derive(Clone, Debug)]
pub struct Unknown(pub(crate) String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}
