//! The HTTP/1.1 that daemon and proxy share: heads in and out. httparse reads the heads (it is the parser
//! inside hyper, fuzzed and without allocation); bodies never pass through an HTTP library, because the
//! way a body takes is what this program is about.

pub mod conditional;
pub mod path;
pub mod range;
pub mod request;
pub mod response;
