//! A progress bar for searches that take longer than a second, lines where none can be drawn, and Ctrl-C.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use super::models::group;
use crate::search::Observer;
use crate::units::Picos;

/// How a bar of so many `things` is drawn: what is done of how many, how many a second, and `then`.
pub(crate) fn style(things: &str, then: &str) -> ProgressStyle {
    let template = format!("{{bar:30}} {{human_pos}}/{{human_len}} {things}, {{rate}}/s, {then}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // On the whole: bounds rule out very many at once now and then.
    style.with_key("rate", |state: &ProgressState, into: &mut dyn Write| {
        let rate = state.pos() as f64 / state.elapsed().as_secs_f64().max(1e-3);
        let _ = into.write_str(&group(rate.round() as u64));
    })
}

/// Set by Ctrl-C.
static INTERRUPTED: LazyLock<AtomicBool> = LazyLock::new(|| AtomicBool::new(false));

/// How long nothing is drawn, and how often at least then.
const WAIT: Duration = Duration::from_secs(1);

/// When the first line is printed where no bar can be drawn, and how often one is then.
const FIRST_LINE: Duration = Duration::from_secs(5);
const LINES_APART: Duration = Duration::from_secs(30);

/// What is proved of plans.
const PROVING: &str = "proving how near their splits are to the fastest";

/// Whether Ctrl-C has asked for an end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Search,
    Proof,
    WaysOut,
}

impl Phase {
    fn style(self) -> ProgressStyle {
        match self {
            Self::Search => style("layouts", "{msg}"),
            Self::Proof => {
                let proof = format!("{{bar:30}} {{pos}}/{{len}} plans, {PROVING}, {{elapsed}}");
                ProgressStyle::with_template(&proof).unwrap_or_else(|_| ProgressStyle::default_bar())
            }
            Self::WaysOut => {
                let looking = "looking for ways out, {elapsed}; Ctrl-C ends that";
                ProgressStyle::with_template(looking).unwrap_or_else(|_| ProgressStyle::default_bar())
            }
        }
    }

    /// What the bar says, as a line.
    fn line(self, bar: &ProgressBar) -> String {
        let of = |things: &str| {
            format!("{} of {} {things}", group(bar.position()), group(bar.length().unwrap_or_default()))
        };
        match self {
            Self::Search if bar.message().is_empty() => of("layouts"),
            Self::Search => format!("{}, {}", of("layouts"), bar.message()),
            Self::Proof => format!("{}, {PROVING}", of("plans")),
            Self::WaysOut => "looking for ways out".to_owned(),
        }
    }
}

/// Draws a bar on stderr, once searches have taken a second or at once; where that is no terminal, prints a line now and then.
pub(crate) struct Bar {
    begun: Instant,
    wait: Duration,
    limit: Option<Duration>,
    /// Whether what is searched are ways out.
    ways_out: AtomicBool,
    /// Which searches go on, counted from 1: the first of them is drawn.
    turns: Mutex<BTreeSet<usize>>,
    /// Of how many.
    searches: AtomicUsize,
    /// How often it was time for a line, told or not.
    lines: AtomicU64,
    /// Since when plans are proved, if they are, and how long others were.
    proving: Mutex<(Option<Instant>, Duration)>,
    /// What is drawn, and of which search.
    bar: Mutex<Option<(Phase, Option<usize>, ProgressBar)>>,
}

impl Bar {
    /// A bar for a search that may take this long.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        // The first Ctrl-C, or signal to terminate, asks for the best so far; where no handler can be set the default one stays.
        let _ = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
        Self {
            begun: Instant::now(),
            wait: WAIT,
            limit,
            ways_out: AtomicBool::new(false),
            turns: Mutex::default(),
            searches: AtomicUsize::new(1),
            lines: AtomicU64::new(0),
            proving: Mutex::default(),
            bar: Mutex::new(None),
        }
    }
    /// Search `number` of `all`, of which several may go on at once.
    pub(crate) fn turn(&self, number: usize, all: usize) -> Turn<'_> {
        self.searches.store(all, Ordering::Relaxed);
        if let Ok(mut turns) = self.turns.lock() {
            turns.insert(number);
        }
        Turn { bar: self, number }
    }
    /// The search that is drawn.
    fn drawn(&self) -> Option<usize> {
        self.turns.lock().ok().and_then(|turns| turns.first().copied())
    }
    /// From here on searches are for ways out.
    pub(crate) fn ways_out(&self) {
        self.ways_out.store(true, Ordering::Relaxed);
    }
    /// Draws from the beginning: it will take long.
    pub(crate) fn at_once(self) -> Self {
        Self { wait: Duration::ZERO, ..self }
    }
    /// What told it to stop.
    pub(crate) fn stopped_by(&self) -> &'static str {
        if interrupted() { "Ctrl-C" } else { "--time-limit" }
    }
    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
    /// How much of that went into the splits of plans that are printed; nothing where several searches go on at once.
    pub(crate) fn proved_for(&self) -> Duration {
        if self.searches.load(Ordering::Relaxed) > 1 {
            return Duration::ZERO;
        }
        self.proving.lock().map_or(Duration::ZERO, |proving| proving.1)
    }
    /// Draws the bar of a phase of so many things, once there is somebody waiting.
    fn draw(&self, phase: Phase, all: u64, draw: impl FnOnce(&ProgressBar)) {
        if self.begun.elapsed() < self.wait {
            return;
        }
        let Ok(mut slot) = self.bar.lock() else { return };
        let search = self.drawn();
        if let Some((.., bar)) = slot.take_if(|(drawn, of, _)| (*drawn, *of) != (phase, search)) {
            bar.finish_and_clear();
        }
        let (.., bar) = slot.get_or_insert_with(|| {
            let bar = ProgressBar::new(all).with_elapsed(self.begun.elapsed());
            bar.set_style(phase.style());
            // What takes long between two calls is seen to go on.
            bar.enable_steady_tick(WAIT);
            (phase, search, bar)
        });
        bar.set_length(all);
        draw(bar);
        let elapsed = self.elapsed();
        if bar.is_hidden() && self.line_is_due(elapsed) {
            anstream::eprintln!("{} s: {}", elapsed.as_secs(), phase.line(bar));
        }
    }

    /// Whether it is time for another line, which is told once.
    fn line_is_due(&self, elapsed: Duration) -> bool {
        let over = u64::from(elapsed >= FIRST_LINE) + elapsed.as_secs() / LINES_APART.as_secs();
        over > self.lines.swap(over, Ordering::Relaxed)
    }
    /// Removes the bar.
    pub(crate) fn clear(&self) {
        if let Ok(mut bar) = self.bar.lock()
            && let Some((.., bar)) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Bar {
    fn progress(&self, settled: u64, candidates: u64, best: Option<Picos>, open: Option<Picos>) {
        if self.ways_out.load(Ordering::Relaxed) {
            return self.draw(Phase::WaysOut, candidates, |_| {});
        }
        self.draw(Phase::Search, candidates, |bar| {
            bar.set_position(settled);
            if let (Some(best), Some(open)) = (best, open) {
                let gap = (1.0 - open.0 as f64 / best.0 as f64).max(0.0) * 100.0;
                let (number, all) = (self.drawn().unwrap_or(1), self.searches.load(Ordering::Relaxed));
                let which = if all > 1 { format!("search {number} of {all}, ") } else { String::new() };
                bar.set_message(format!("{which}best {best}, gap at most {gap:.1}%"));
            } else if let Some(best) = best
                && let Some(left) = time_left(self.elapsed(), settled, candidates)
            {
                // A survey skips nothing: what is left takes as long as what was seen.
                bar.set_message(format!("best {best}, about {} left", HumanDuration(left)));
            }
        });
    }
    fn certified(&self, done: usize, plans: usize) {
        if self.ways_out.load(Ordering::Relaxed) || plans == 0 {
            return;
        }
        if let Ok(mut proving) = self.proving.lock() {
            if done == 0 {
                proving.0 = Some(Instant::now());
            } else if done == plans {
                let (begun, so_far) = *proving;
                *proving = (None, so_far + begun.map_or(Duration::ZERO, |begun| begun.elapsed()));
            }
        }
        // Threads may tell in another order than they count.
        self.draw(Phase::Proof, plans as u64, |bar| {
            let before = if done == 0 { 0 } else { bar.position() };
            bar.set_position(before.max(done as u64));
        });
    }
    fn stop(&self) -> bool {
        interrupted() || self.limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }
}

/// How long the rest of a work takes that goes on at the same pace, if any of it is done and any left.
fn time_left(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    let left = all.checked_sub(done).filter(|&left| left > 0 && done > 0)?;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() / done as f64 * left as f64).ok()
}

/// One search of several, as long as it goes on.
pub(crate) struct Turn<'a> {
    bar: &'a Bar,
    number: usize,
}

impl Turn<'_> {
    fn is_drawn(&self) -> bool {
        self.bar.drawn() == Some(self.number)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Ok(mut turns) = self.bar.turns.lock() {
            turns.remove(&self.number);
        }
    }
}

impl Observer for Turn<'_> {
    fn progress(&self, settled: u64, candidates: u64, best: Option<Picos>, open: Option<Picos>) {
        if self.is_drawn() {
            self.bar.progress(settled, candidates, best, open);
        }
    }
    fn certified(&self, done: usize, plans: usize) {
        if self.is_drawn() {
            self.bar.certified(done, plans);
        }
    }
    fn stop(&self) -> bool {
        self.bar.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of several searches at once the first that goes on is drawn.
    #[test]
    fn one_search_of_several_is_drawn() {
        let bar = Bar::new(None);
        let (first, second, third) = (bar.turn(1, 3), bar.turn(2, 3), bar.turn(3, 3));
        assert_eq!([&first, &second, &third].map(Turn::is_drawn), [true, false, false]);
        drop(first);
        drop(third);
        assert!(second.is_drawn());
        drop(second);
        assert_eq!(bar.drawn(), None);
    }

    #[test]
    fn the_time_left_is_at_the_pace_so_far() {
        let left = |done, all| time_left(Duration::from_secs(10), done, all);
        assert_eq!(left(25, 100), Some(Duration::from_secs(30)));
        assert_eq!([left(0, 100), left(100, 100), left(101, 100)], [None; 3]);
    }

    #[test]
    fn lines_stand_in_for_the_bar() {
        let due: Vec<u64> = {
            let bar = Bar::new(None);
            (0..130).filter(|&second| bar.line_is_due(Duration::from_secs(second))).collect()
        };
        assert_eq!(due, [5, 30, 60, 90, 120]);
        let bar = ProgressBar::hidden();
        bar.set_length(120_000);
        bar.set_position(4000);
        assert_eq!(Phase::Search.line(&bar), "4,000 of 120,000 layouts");
        bar.set_message("best 2.1 s, gap at most 3.0%");
        assert_eq!(Phase::Search.line(&bar), "4,000 of 120,000 layouts, best 2.1 s, gap at most 3.0%");
    }
}
