//! What a NIC would do, asked beforehand.

use crate::carrier::NicSays;
use crate::kernel::Interface;
use onecopy_socket::{Error, Op, Result};

/// Asks the driver of an interface whether its NIC receives into memory of others, by either of the kernel's ways. None of its queues begins anew for it, so what they carry goes
/// on; and so it is not the last word, which [`Binding::path`](super::Binding::path) has. It takes CAP_NET_ADMIN.
///
/// # Errors
///
/// ENODEV for no such interface; what socket(2) says.
pub fn ask_nic(interface: &str) -> Result<NicSays> {
    let interface = Interface::named(interface).map_err(|errno| {
        Error::new(Op::Bind, errno).about("interface").because("`ip link` says which interfaces there are")
    })?;
    Ok(interface.says())
}
