//! Pieces of work that several threads do, each given out with what is known of those before it.
//!
//! Rounds of so many pieces would leave threads idle at the end of each. Here the next piece is given out as soon as
//! the oldest that is not done is: what it may know is what all but the last few before it have shown, in their order,
//! however fast they were. So results do not depend on the number of threads.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::time::Duration;

use rayon::Yield;

/// Where pieces of work come from, and where their results go.
pub(super) trait Source: Send {
    type Task: Send + 'static;
    type Done: Send + 'static;

    /// The next piece while so many others are at work; none if that cannot be told before one of them is done, or if
    /// none is left.
    fn next(&mut self, at_work: usize) -> Option<Self::Task>;

    /// Takes a result, in the order in which the pieces were given out.
    fn done(&mut self, result: Self::Done);
}

/// Does all work of a source, so many pieces at once.
pub(super) fn flow<S: Source>(source: &mut S, at_once: usize, work: &(dyn Fn(S::Task) -> S::Done + Sync)) {
    rayon::scope_fifo(|scope| {
        let (give, results) = mpsc::channel();
        // Results of pieces that were faster than an older one.
        let mut early = BTreeMap::new();
        let (mut oldest, mut given) = (0, 0);
        loop {
            while given - oldest < at_once
                && let Some(task) = source.next(given - oldest)
            {
                let give = give.clone();
                scope.spawn_fifo(move |_| {
                    let result = catch_unwind(AssertUnwindSafe(|| work(task)));
                    // It is heard as long as nothing else has failed.
                    let _ = give.send((given, result));
                });
                given += 1;
            }
            if oldest == given {
                return;
            }
            let result = loop {
                if let Some(result) = early.remove(&oldest) {
                    break result;
                }
                if let Ok((at, result)) = results.try_recv() {
                    early.insert(at, result);
                } else if rayon::yield_now() != Some(Yield::Executed)
                    && let Ok((at, result)) = results.recv_timeout(IDLE)
                {
                    early.insert(at, result);
                }
            };
            oldest += 1;
            source.done(result.unwrap_or_else(|panic| resume_unwind(panic)));
        }
    });
}

/// How long a thread without work waits before it looks for some.
const IDLE: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers below `most`, each with what was known when it was given out; every tenth is asked for in vain as long as
    /// others are at work.
    struct Numbers {
        next: u64,
        most: u64,
        known: Vec<u64>,
        given: Vec<(u64, usize, usize)>,
    }

    impl Source for Numbers {
        type Task = u64;
        type Done = u64;

        fn next(&mut self, at_work: usize) -> Option<u64> {
            let waits = self.next.is_multiple_of(10) && at_work > 0;
            (!waits && self.next < self.most).then(|| {
                self.given.push((self.next, at_work, self.known.len()));
                self.next += 1;
                self.next - 1
            })
        }

        fn done(&mut self, result: u64) {
            self.known.push(result);
        }
    }

    fn through(threads: usize, at_once: usize, most: u64) -> Numbers {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut numbers = Numbers { next: 0, most, known: Vec::new(), given: Vec::new() };
        // The first of every few takes longest.
        let work = |n: u64| {
            std::thread::sleep(Duration::from_micros(50 * (4 - n % 5)));
            n * n
        };
        pool.install(|| flow(&mut numbers, at_once, &work));
        numbers
    }

    #[test]
    fn what_is_known_does_not_depend_on_threads() {
        for (at_once, most) in [(1, 7), (3, 40), (8, 40), (8, 0)] {
            let one = through(1, at_once, most);
            assert!(one.known.iter().copied().eq((0..most).map(|n| n * n)));
            assert!(one.given.iter().all(|&(n, at_work, known)| {
                at_work < at_once && known + at_work == n as usize && (n % 10 > 0 || at_work == 0)
            }));
            assert!(most == 0 || one.given.iter().any(|given| given.1 + 1 == at_once.min(9)));
            for threads in [2, 3] {
                let several = through(threads, at_once, most);
                assert_eq!((several.known, several.given), (one.known.clone(), one.given.clone()));
            }
        }
    }

    #[test]
    fn what_fails_fails_the_whole() {
        struct Once(bool);
        impl Source for Once {
            type Task = ();
            type Done = ();
            fn next(&mut self, _: usize) -> Option<()> {
                std::mem::take(&mut self.0).then_some(())
            }
            fn done(&mut self, (): ()) {}
        }
        let failed = catch_unwind(|| flow(&mut Once(true), 4, &|()| panic!("as it should")));
        assert_eq!(failed.unwrap_err().downcast_ref(), Some(&"as it should"));
    }
}
