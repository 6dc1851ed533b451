//! Sessions whose work the bench's own thread does.

use anyhow::Result;

use crate::proc::Pinned;
use crate::row::{Context, Sample, Session};

/// Makes a session that works on the first CPU, and leaves the thread where it was: servers of a later row would all begin on
/// the CPU where it stayed.
pub fn pinned<S: Session + 'static>(
    context: &Context,
    open: impl FnOnce() -> Result<S>,
) -> Result<Box<dyn Session>> {
    let cpu = context.cpus[0];
    let _pinned = Pinned::to(cpu)?;
    Ok(Box::new(OnOneCpu { cpu, session: open()? }))
}

struct OnOneCpu<S> {
    cpu: usize,
    session: S,
}

impl<S: Session> Session for OnOneCpu<S> {
    fn verify(&mut self) -> Result<()> {
        let _pinned = Pinned::to(self.cpu)?;
        self.session.verify()
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let _pinned = Pinned::to(self.cpu)?;
        self.session.run(work)
    }
}
