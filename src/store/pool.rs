//! The r2d2 pool of links.
//!
//! The pool holds *places* for connections, filled on first use by the thread that uses them. r2d2 itself
//! would connect on threads of its own, tell the caller nothing of a failure until the whole time limit has
//! passed, and then flatten it to a string; here a refused connection is an error at once, of its own type, and
//! a broken connection is replaced where it is noticed. For the same reason a link is never tested on check
//! out: a PING would cost half of the throughput and prove nothing about the request after it.

use std::convert::Infallible;
use std::time::Duration;

use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Failure, FailureKind};
use crate::store::link::{Link, Route};
use crate::sync::Arc;

#[derive(Debug)]
struct Places {
    route: Route,
}

impl r2d2::ManageConnection for Places {
    type Connection = Link;
    type Error = Infallible;

    fn connect(&self) -> Result<Link, Infallible> {
        Ok(Link::new(self.route.clone()))
    }

    fn is_valid(&self, _: &mut Link) -> Result<(), Infallible> {
        Ok(())
    }

    /// A link that broke has dropped its connection already; the place is as good as new.
    fn has_broken(&self, _: &mut Link) -> bool {
        false
    }
}

pub(crate) struct Pool {
    places: r2d2::Pool<Places>,
}

impl Pool {
    pub(crate) fn new(route: Route, size: u32) -> Self {
        // r2d2's own default is three threads, which would have nothing to do.
        let threads = ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern("leasehold-pool-{}")
            .build();
        let places = r2d2::Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // Nothing to expire, so no thread looks for it.
            .idle_timeout(None)
            .max_lifetime(None)
            .thread_pool(Arc::new(threads))
            .build_unchecked(Places { route });
        Self { places }
    }

    /// Closes the connections of the free links that have not been used for so long; they are opened again when they
    /// are needed.
    pub(crate) fn close_idle(&self, idle: Duration) {
        // All are taken out before one goes back, or the same would come again and again.
        let mut free = Vec::new();
        while let Some(link) = self.places.try_get() {
            free.push(link);
        }
        // The one that was used last goes back last, since the pool gives out first what came back last.
        while let Some(mut link) = free.pop() {
            link.close_if_idle(idle);
        }
    }

    /// Waits for a free link.
    ///
    /// # Errors
    ///
    /// [`FailureKind::Unavailable`] where none became free within `wait`.
    pub(crate) fn link(
        &self,
        wait: Duration,
    ) -> Result<impl std::ops::DerefMut<Target = Link> + use<>, Failure> {
        self.places.get_timeout(wait).map_err(|_| {
            let words = format!("no connection of the pool became free within {wait:?}");
            Failure::plain(FailureKind::Unavailable, false, words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Server, Settings};
    use crate::store::node::route;

    /// The one that was given back last is the one that is surely open.
    #[test]
    fn closing_the_idle_ones_keeps_the_order_in_which_they_are_given_out() {
        let server = Server::parse("redis://127.0.0.1:1/", None).expect("a URL");
        let pool = Pool::new(route(server, &Settings::default()), 3);
        let soon = Duration::from_secs(20);
        let all: Vec<_> = (0..3)
            .map(|_| pool.link(soon).expect("it is free"))
            .collect();
        let mut order: Vec<_> = all.iter().map(|link| link.used()).collect();
        order.reverse();
        for link in all {
            drop(link);
        }
        pool.close_idle(Duration::ZERO);
        let again: Vec<_> = (0..3)
            .map(|_| pool.link(soon).expect("it is free"))
            .collect();
        let again: Vec<_> = again.iter().map(|link| link.used()).collect();
        assert_eq!(again, order);
    }
}
