//! The progress line, the last one on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The line, or none where nobody would see it.
#[derive(Clone)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// On stderr.
    pub fn new(is_seen: bool) -> Bar {
        Bar(is_seen.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            bar.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg}").expect("the template is valid"),
            );
            bar
        }))
    }

    /// Shows it, if somebody sees it.
    pub fn show(&self, line: impl FnOnce() -> String) {
        if let Some(bar) = &self.0 {
            bar.set_message(line());
            bar.tick();
        }
    }

    /// `write` puts lines on the terminal, above this one.
    pub fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.0 {
            // It is drawn again afterwards, and so is one that was never drawn.
            Some(bar) if !bar.message().is_empty() => bar.suspend(write),
            _ => write(),
        }
    }

    /// For good.
    pub fn end(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}
