//! A progress bar for searches that take longer than a second, and Ctrl-C.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::models::group;
use crate::search::Observer;
use crate::units::Picos;

/// How a bar of so many `things` is drawn: what is done of how many, how many a second, and `then`.
pub(crate) fn style(things: &str, then: &str) -> ProgressStyle {
    let template = format!("{{bar:30}} {{human_pos}}/{{human_len}} {things}, {{rate}}/s, {then}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("rate", |state: &ProgressState, into: &mut dyn Write| {
        let _ = into.write_str(&group(state.per_sec().round() as u64));
    })
}

/// Set by Ctrl-C.
static INTERRUPTED: LazyLock<AtomicBool> = LazyLock::new(|| AtomicBool::new(false));

/// Draws a bar on stderr once a search has taken a second.
pub(crate) struct Bar {
    begun: Instant,
    limit: Option<Duration>,
    bar: Mutex<Option<ProgressBar>>,
}

impl Bar {
    /// A bar for a search that may take this long.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        // The first Ctrl-C asks for the best so far; where no handler can be set the default one stays.
        let _ = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
        Self { begun: Instant::now(), limit, bar: Mutex::new(None) }
    }
    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
    /// Removes the bar.
    pub(crate) fn clear(&self) {
        if let Ok(mut bar) = self.bar.lock()
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Bar {
    fn progress(&self, settled: u64, candidates: u64, best: Option<Picos>, open: Option<Picos>) {
        if self.begun.elapsed() < Duration::from_secs(1) {
            return;
        }
        let Ok(mut slot) = self.bar.lock() else { return };
        let bar = slot.get_or_insert_with(|| {
            let bar = ProgressBar::new(candidates);
            bar.set_style(style("layouts", "{msg}"));
            bar
        });
        bar.set_position(settled);
        if let (Some(best), Some(open)) = (best, open) {
            let gap = (1.0 - open.0 as f64 / best.0 as f64).max(0.0) * 100.0;
            bar.set_message(format!("best {best}, gap at most {gap:.1}%"));
        }
    }
    fn stop(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed) || self.limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }
}
