//! The progress line, the last one on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::getpgrp;
use rustix::stdio::stderr;
use rustix::termios::tcgetpgrp;

/// The line, or none where nobody would see it.
#[derive(Clone)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// On stderr.
    pub fn new(is_seen: bool) -> Bar {
        Bar(is_seen.then(|| {
            let bar = ProgressBar::with_draw_target(None, target());
            bar.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg}").expect("the template is valid"),
            );
            bar
        }))
    }

    /// Shows it, if somebody sees it.
    pub fn show(&self, line: impl FnOnce() -> String) {
        if let Some(bar) = &self.0 {
            give_way(bar);
            bar.set_message(line());
            bar.tick();
        }
    }

    /// `write` puts lines on the terminal, above this one.
    pub fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.iter().for_each(give_way);
        match &self.0 {
            // It is drawn again afterwards, and so is one that was never drawn.
            Some(bar) if !bar.message().is_empty() => bar.suspend(write),
            _ => write(),
        }
    }

    /// For good.
    pub fn end(&mut self) {
        if let Some(bar) = self.0.take() {
            give_way(&bar);
            bar.finish_and_clear();
        }
    }
}

fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(5)
}

/// While another job of the shell, or its prompt, has the terminal, the line is neither drawn nor removed: the cursor is elsewhere. It
/// comes back with the terminal (`fg`).
fn give_way(bar: &ProgressBar) {
    // One that is no job's terminal is nobody else's.
    let is_anothers = tcgetpgrp(stderr()).is_ok_and(|group| group != getpgrp());
    match (is_anothers, bar.is_hidden()) {
        (true, false) => bar.set_draw_target(ProgressDrawTarget::hidden()),
        (false, true) => bar.set_draw_target(target()),
        _ => {}
    }
}
