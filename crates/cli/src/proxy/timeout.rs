//! A bound on a wait.

use std::future::Future;
use std::time::Duration;

/// The future's output, or None when it takes longer than `span`.
pub async fn within<T>(span: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(span, future).await.ok()
}
