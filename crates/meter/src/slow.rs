//! Stages that take longer, for tests that want to see them named.
//!
//! Compiled in only with the cargo feature `faults`, and even then nothing happens without `HAUL_TEST_SLOW`, which is read
//! once: `STAGE=MICROSECONDS`, as [`Stage::name`] has it; every time that a thread enters this stage it takes so much longer:
//! a processor works for nothing where the stage is one of processors (or `busy-` stands in front of it), else the thread waits.

use haul_model::profile::Stage;

#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn down(_stage: Stage) {}

/// Panics at a word that it does not know: a test that asks for nothing would pass for the wrong reason.
#[cfg(feature = "faults")]
pub(crate) fn down(stage: Stage) {
    use std::sync::OnceLock;
    use std::time::Duration;

    static SLOW: OnceLock<Option<(Stage, bool, Duration)>> = OnceLock::new();
    let asked = || {
        let text = std::env::var("HAUL_TEST_SLOW").ok()?;
        let (name, micros) = text.split_once('=').expect("STAGE=MICROSECONDS");
        let (name, busy) = name.strip_prefix("busy-").map_or((name, false), |name| (name, true));
        let stage = Stage::ALL.iter().find(|stage| stage.name() == name);
        let stage = *stage.unwrap_or_else(|| panic!("no stage {name:?}"));
        let busy = busy || matches!(stage, Stage::Hash | Stage::Cipher | Stage::Receive);
        Some((stage, busy, Duration::from_micros(micros.parse().expect("microseconds"))))
    };
    if let Some((slow, busy, pause)) = SLOW.get_or_init(asked)
        && *slow == stage
    {
        if !busy {
            return std::thread::sleep(*pause);
        }
        let until = crate::processor_nanos() + pause.as_nanos() as u64;
        while crate::processor_nanos() < until {
            std::hint::spin_loop();
        }
    }
}
