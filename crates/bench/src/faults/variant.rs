//! What is compared: the ways to log, and the workloads of the paper.

use std::fmt;

/// The mechanisms that share a log among files.
pub const MECHANISMS: [&str; 3] = ["file", "transaction", "universal"];
/// The methods to write objects down.
pub const METHODS: [&str; 6] = ["char", "int", "enc", "binary", "bit8", "bit64"];

/// A way to move the workload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Variant {
    /// haul without a log: the paper's LADS.
    NoLog,
    /// haul with a log: mechanism and method.
    Log(&'static str, &'static str),
    /// haul as it is by default: small files in bundles, objects of 4 MiB, the default log.
    Default,
    /// `rsync --partial --append-verify`.
    Rsync,
    /// `bbcp -a`.
    Bbcp,
}

impl Variant {
    /// haul's default log.
    pub const DEFAULT_LOG: Variant = Variant::Log("universal", "bit64");

    /// All eighteen logs.
    pub fn logs() -> impl Iterator<Item = Variant> {
        MECHANISMS
            .into_iter()
            .flat_map(|mechanism| METHODS.into_iter().map(move |method| Variant::Log(mechanism, method)))
    }

    /// `universal+bit64`, `no-log`, `default`, `rsync`.
    pub fn from_name(name: &str) -> Option<Variant> {
        Variant::logs()
            .chain([Variant::NoLog, Variant::Default, Variant::Rsync, Variant::Bbcp])
            .find(|variant| variant.to_string() == name)
    }

    /// It is haul that moves.
    pub fn is_haul(self) -> bool {
        !matches!(self, Variant::Rsync | Variant::Bbcp)
    }

    /// The options of `haul cp` that make it so.
    pub fn options(self) -> Vec<String> {
        let words: &[&str] = match self {
            Variant::NoLog => &["--object-size", "1MiB", "--bundle-below", "0", "--log-mechanism", "none"],
            Variant::Log(mechanism, method) => &[
                "--object-size",
                "1MiB",
                "--bundle-below",
                "0",
                "--log-mechanism",
                mechanism,
                "--log-method",
                method,
            ],
            Variant::Default | Variant::Rsync | Variant::Bbcp => &[],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::NoLog => f.write_str("no-log"),
            Variant::Log(mechanism, method) => write!(f, "{mechanism}+{method}"),
            Variant::Default => f.write_str("default"),
            Variant::Rsync => f.write_str("rsync"),
            Variant::Bbcp => f.write_str("bbcp"),
        }
    }
}

/// Files of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// `big` or `small`.
    pub name: &'static str,
    /// How many.
    pub files: u64,
    /// Bytes of each.
    pub file_bytes: u64,
}

impl Workload {
    /// The paper's big workload, 100 files of 1 GB, or a part of it: the files are smaller.
    pub fn big(scale: f64) -> Workload {
        Workload { name: "big", files: 100, file_bytes: scaled(1_000_000_000, scale) }
    }

    /// The paper's small workload, 10,000 files of 1 MB, or a part of it. The files are smaller, but as many bytes as
    /// the big workload of the same scale as long as that is possible: it has a tenth of them at full scale.
    pub fn small(scale: f64) -> Workload {
        Workload { name: "small", files: 10_000, file_bytes: scaled(1_000_000, (10.0 * scale).min(1.0)) }
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.files * self.file_bytes
    }

    /// So many bytes have been sent when a fault comes at this percent: in the midst of a file. At the end of one nothing would be
    /// lost without a log either.
    pub fn point(&self, percent: u32) -> u64 {
        self.bytes() * u64::from(percent) / 100 / self.file_bytes * self.file_bytes + self.file_bytes / 2
    }
}

fn scaled(bytes: u64, scale: f64) -> u64 {
    ((bytes as f64 * scale).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_in_the_midst_of_a_file() {
        for workload in [Workload::big(0.003), Workload::small(0.003), Workload::big(1.0)] {
            for percent in [1, 20, 40, 60, 80, 99] {
                let (point, bytes) = (workload.point(percent), workload.bytes());
                assert_ne!(point % workload.file_bytes, 0, "{workload:?} {percent}");
                let exact = bytes as f64 * f64::from(percent) / 100.0;
                assert!(
                    point < bytes && (point as f64 - exact).abs() <= workload.file_bytes as f64,
                    "{percent}"
                );
            }
        }
    }

    #[test]
    fn there_are_eighteen_logs_and_each_is_known_by_its_name() {
        let logs: Vec<_> = Variant::logs().collect();
        assert_eq!(logs.len(), 18);
        for variant in logs.into_iter().chain([Variant::NoLog, Variant::Default, Variant::Rsync]) {
            assert_eq!(Variant::from_name(&variant.to_string()), Some(variant));
        }
        assert_eq!(Variant::from_name("bit64"), None);
    }

    #[test]
    fn full_scale_is_the_papers() {
        assert_eq!((Workload::big(1.0).files, Workload::big(1.0).file_bytes), (100, 1_000_000_000));
        assert_eq!((Workload::small(1.0).files, Workload::small(1.0).file_bytes), (10_000, 1_000_000));
        assert_eq!(Workload::small(0.02).bytes(), Workload::big(0.02).bytes());
    }
}
