//! Faults for tests: a failing call or a flipped bit at a chosen moment.
//!
//! Compiled in only with the cargo feature `faults`, and even then nothing happens without its environment variable,
//! which is read once. Its value is a number `N`: the N-th time that this place is reached, counted from 1, or `N+`:
//! that time and every later one.
//!
//! | variable | what happens |
//! |---|---|
//! | `HAUL_TEST_SOURCE_READ_EIO` | a read of file content fails with `EIO` |
//! | `HAUL_TEST_SOURCE_FLIP_BEFORE_HASH` | a bit flips after the read: the hash is that of the wrong bytes |
//! | `HAUL_TEST_SPILL_WRITE_EIO` | a write to the spill fails with `EIO` |
//! | `HAUL_TEST_SPILL_READ_EIO` | a read from the spill fails with `EIO` |
//! | `HAUL_TEST_KERNEL_COPY_FAILS` | the kernel refuses to copy from file to file |
//! | `HAUL_TEST_SOURCE_FLIP_AFTER_HASH` | a bit flips after the bytes were hashed: the sink must notice |
//!
//! `HAUL_TEST_SOURCE_LOOK_HANGS` and `HAUL_TEST_SINK_MAKE_HANGS` take the beginning of the names of files of which storage never
//! says whether they have changed, and which it never makes.
//!
//! `HAUL_TEST_HASHES_LATE` with any value: nothing is hashed before there is another end (in every
//! build). `HAUL_TEST_HASHED_EARLY` names a file that is
//! made when all that was found is hashed.
//!
//! `HAUL_TEST_ENGINE` takes words instead: what engines find that they cannot do ([`Trouble`](crate::engine::Trouble)).

#[cfg(feature = "faults")]
pub(crate) use active::*;
#[cfg(not(feature = "faults"))]
pub(crate) use inert::*;

/// In every build: what a process has read tells how much it has sent only then.
pub(crate) fn hashes_late() -> bool {
    std::env::var_os("HAUL_TEST_HASHES_LATE").is_some()
}

#[cfg(feature = "faults")]
mod active {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::io::Errno;

    /// One place where something can go wrong.
    pub(crate) struct Fault {
        variable: &'static str,
        at: OnceLock<Option<(u64, bool)>>,
        reached: AtomicU64,
    }

    impl Fault {
        pub(crate) const fn new(variable: &'static str) -> Self {
            Fault { variable, at: OnceLock::new(), reached: AtomicU64::new(0) }
        }

        /// Counts the visit. True if it is the one.
        pub(crate) fn strikes(&self) -> bool {
            let at = self.at.get_or_init(|| {
                let value = std::env::var(self.variable).ok()?;
                let number = value.strip_suffix('+').unwrap_or(&value).parse().ok()?;
                Some((number, value.ends_with('+')))
            });
            let Some((number, onwards)) = *at else { return false };
            let reached = self.reached.fetch_add(1, Ordering::Relaxed) + 1;
            reached == number || onwards && reached > number
        }

        pub(crate) fn flip(&self, bytes: &mut [u8]) {
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle)
                && self.strikes()
            {
                *byte ^= 0x10;
            }
        }
    }

    static SOURCE_READ_EIO: Fault = Fault::new("HAUL_TEST_SOURCE_READ_EIO");
    static SPILL_WRITE_EIO: Fault = Fault::new("HAUL_TEST_SPILL_WRITE_EIO");
    static KERNEL_COPY_FAILS: Fault = Fault::new("HAUL_TEST_KERNEL_COPY_FAILS");
    static SPILL_READ_EIO: Fault = Fault::new("HAUL_TEST_SPILL_READ_EIO");
    static SOURCE_FLIP_BEFORE_HASH: Fault = Fault::new("HAUL_TEST_SOURCE_FLIP_BEFORE_HASH");
    static SOURCE_FLIP_AFTER_HASH: Fault = Fault::new("HAUL_TEST_SOURCE_FLIP_AFTER_HASH");

    /// Bytes are changed in their slot, so they must go through one.
    pub(crate) fn changes_source_bytes() -> bool {
        ["HAUL_TEST_SOURCE_FLIP_BEFORE_HASH", "HAUL_TEST_SOURCE_FLIP_AFTER_HASH"]
            .iter()
            .any(|name| std::env::var_os(name).is_some())
    }

    pub(crate) fn hashed_early() {
        if let Some(path) = std::env::var_os("HAUL_TEST_HASHED_EARLY") {
            std::fs::write(path, b"").expect("a file can be made there");
        }
    }

    /// Before each read of file content.
    pub(crate) fn source_read() -> Result<(), Errno> {
        #[cfg(test)]
        super::moments::pass(super::moments::Moment::Read);
        if SOURCE_READ_EIO.strikes() { Err(Errno::IO) } else { Ok(()) }
    }

    /// Before a look at a file, and before a small file is made: for ever, if its name begins like this.
    pub(crate) fn hang(variable: &str, name: &[u8]) {
        let hangs = |text: std::ffi::OsString| name.starts_with(text.as_encoded_bytes());
        while std::env::var_os(variable).is_some_and(hangs) {
            std::thread::sleep(std::time::Duration::from_secs(3600));
        }
    }

    /// Before each copy from file to file by the kernel.
    pub(crate) fn kernel_copy() -> Result<(), Errno> {
        #[cfg(test)]
        super::moments::kernel_copy()?;
        if KERNEL_COPY_FAILS.strikes() { Err(Errno::XDEV) } else { Ok(()) }
    }

    /// Before each write to the spill.
    pub(crate) fn spill_write() -> Result<(), Errno> {
        if SPILL_WRITE_EIO.strikes() { Err(Errno::IO) } else { Ok(()) }
    }

    /// Before each read from the spill.
    pub(crate) fn spill_read() -> Result<(), Errno> {
        if SPILL_READ_EIO.strikes() { Err(Errno::IO) } else { Ok(()) }
    }

    /// These bytes were read and are hashed next.
    pub(crate) fn source_bytes_read(bytes: &mut [u8]) {
        #[cfg(test)]
        super::moments::pass(super::moments::Moment::Arrived);
        SOURCE_FLIP_BEFORE_HASH.flip(bytes);
    }

    /// These bytes were hashed and are sent next.
    pub(crate) fn source_bytes_hashed(bytes: &mut [u8]) {
        SOURCE_FLIP_AFTER_HASH.flip(bytes);
    }
}

#[cfg(not(feature = "faults"))]
mod inert {
    use rustix::io::Errno;

    #[inline(always)]
    pub(crate) fn changes_source_bytes() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn hashed_early() {}

    #[inline(always)]
    pub(crate) fn source_read() -> Result<(), Errno> {
        #[cfg(test)]
        super::moments::pass(super::moments::Moment::Read);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn hang(_variable: &str, _name: &[u8]) {}

    #[inline(always)]
    pub(crate) fn kernel_copy() -> Result<(), Errno> {
        #[cfg(test)]
        super::moments::kernel_copy()?;
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn spill_write() -> Result<(), Errno> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn spill_read() -> Result<(), Errno> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn source_bytes_read(_bytes: &mut [u8]) {
        #[cfg(test)]
        super::moments::pass(super::moments::Moment::Arrived);
    }

    #[inline(always)]
    pub(crate) fn source_bytes_hashed(_bytes: &mut [u8]) {}
}

/// Unit tests change a file at an exact moment while the same thread reads it.
#[cfg(test)]
pub(crate) mod moments {
    use std::cell::{Cell, RefCell};

    use rustix::io::Errno;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Moment {
        /// The file is open and was found unchanged; the next call reads.
        Read,
        /// Bytes were read.
        Arrived,
        /// The kernel has copied bytes; the next call looks at the copy.
        Copied,
    }

    type Script = Box<dyn FnOnce()>;

    thread_local! {
        static SCRIPT: RefCell<Option<(Moment, Script)>> = const { RefCell::new(None) };
    }

    thread_local! {
        static KERNEL_COPIES: Cell<Option<(usize, Errno)>> = const { Cell::new(None) };
    }

    /// From now on the kernel makes so many copies for this thread, and refuses the others.
    pub(crate) fn kernel_refuses(after: usize, errno: Errno) {
        KERNEL_COPIES.set(Some((after, errno)));
    }

    pub(crate) fn kernel_copy() -> Result<(), Errno> {
        match KERNEL_COPIES.get() {
            Some((0, errno)) => Err(errno),
            Some((left, errno)) => {
                KERNEL_COPIES.set(Some((left - 1, errno)));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Runs `script` once, when this thread comes by `moment`.
    pub(crate) fn once(moment: Moment, script: impl FnOnce() + 'static) {
        SCRIPT.with_borrow_mut(|slot| *slot = Some((moment, Box::new(script))));
    }

    pub(crate) fn pass(moment: Moment) {
        let script = SCRIPT.with_borrow_mut(|slot| slot.take_if(|(wanted, _)| *wanted == moment));
        if let Some((_, script)) = script {
            script();
        }
    }
}
