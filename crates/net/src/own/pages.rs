//! Where the copies of what is sent lie.

use onecopy_pool::provider::Heap;
use onecopy_pool::{AllocError, OpenError, Page, PagePool, Pages, PoolConfig};

/// 4096 << this: bytes of a larger page.
const LARGER: u8 = 4;

/// Pages that wait for their next use, of each kind, beside those of the pool's cache. One that waits here does so behind all others, and is
/// cold when its turn comes; what is too many goes to the provider, who hands out the last one first.
const WAITING: u32 = 64;

/// Pages of two sizes. A large send lies in few of the larger ones: each page costs a view in writev(2), a fragment in the chain, and its way home.
pub(crate) struct SendPages {
    small: PagePool,
    larger: Option<PagePool>,
}

impl SendPages {
    /// As many bytes as `limit` pages of 4 KiB have; half of them in larger pages.
    pub fn new(limit: u32) -> Result<SendPages, OpenError> {
        let pool = |order, limit| {
            PagePool::new(PoolConfig::new().order(order).ring(WAITING).limit(limit), Heap::new())
        };
        let larger = (limit / 2) >> LARGER;
        let small = pool(0, limit - (larger << LARGER))?;
        let larger = if larger > 0 { Some(pool(LARGER, larger)?) } else { None };
        Ok(SendPages { small, larger })
    }

    /// Whether somebody has pages, who gives them back some time.
    pub fn may_come(&self) -> bool {
        self.small.monitor().in_flight() > 0
    }

    /// Calls `act`: what pages it frees are the next ones to be used, while they are warm.
    pub fn bound<R>(&self, act: impl FnOnce() -> R) -> R {
        self.small.bound(|| match &self.larger {
            Some(larger) => larger.bound(act),
            None => act(),
        })
    }
}

impl Pages for SendPages {
    #[inline]
    fn alloc(&self) -> Result<Page, AllocError> {
        self.small.alloc()
    }

    /// A larger one, where these fill most of it.
    #[inline]
    fn alloc_for(&self, len: usize) -> Result<Page, AllocError> {
        if let Some(larger) = self.larger.as_ref().filter(|larger| len >= larger.page_len() as usize / 4 * 3)
            && let Ok(page) = larger.alloc()
        {
            return Ok(page);
        }
        self.small.alloc()
    }

    fn page_len(&self) -> u32 {
        self.small.page_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_chain::{Chain, Writer};

    fn written(pages: &SendPages, len: usize) -> Chain {
        let mut chain = Chain::new();
        Writer::new(pages).append(&mut chain, &vec![7; len]).unwrap();
        chain
    }

    #[test]
    fn a_super_segment_lies_in_one_page_and_a_small_send_in_a_small_one() {
        let pages = SendPages::new(1 << 10).unwrap();
        let shape = |len: usize| {
            let chain = written(&pages, len);
            assert_eq!(chain.len(), len);
            (chain.fragment_count(), chain.true_size())
        };
        assert_eq!(shape(65_160), (1, 64 << 10));
        assert_eq!(shape(100), (1, 4 << 10));
        // Less than three quarters of a larger one.
        assert_eq!(shape(48 << 10), (1, 64 << 10));
        assert_eq!(shape((48 << 10) - 1), (12, 48 << 10));
        assert_eq!(shape((64 << 10) + 752), (2, (64 + 4) << 10));
    }

    #[test]
    fn all_pages_together_are_no_more_than_the_limit() {
        let pages = SendPages::new(64).unwrap();
        let large: Vec<Chain> = (0..2).map(|_| written(&pages, 64 << 10)).collect();
        assert!(large.iter().all(|chain| chain.fragment_count() == 1));
        // Where the larger ones are out, small ones do.
        let third = written(&pages, 64 << 10);
        assert_eq!(third.fragment_count(), 16);
        let mut rest = Vec::new();
        while let Ok(page) = pages.alloc() {
            rest.push(page);
        }
        assert_eq!(rest.len(), 16);
        assert!(Writer::new(&pages).append(&mut Chain::new(), &[7; 64 << 10]).is_err());
        // A stack with few pages has them for small sends.
        let few = SendPages::new(16).unwrap();
        assert_eq!(written(&few, 64 << 10).fragment_count(), 16);
    }

    #[test]
    fn what_is_freed_while_the_stack_looks_is_used_next() {
        let pages = SendPages::new(1 << 10).unwrap();
        let (first, second) = (written(&pages, 64 << 10), written(&pages, 64 << 10));
        let place = |chain: &Chain| chain.host().unwrap().slices().next().unwrap().as_ptr();
        let warm = place(&first);
        pages.bound(|| drop(first));
        assert_eq!(place(&written(&pages, 64 << 10)), warm);
        drop(second);
    }
}
