//! Sets of CPUs, as the kernel writes them: `0-3,8,10-11`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// More than any kernel is built for (`CONFIG_NR_CPUS` is at most 8192); numbers from here on are not believed.
pub const CPUS_MAX: usize = 8192;
/// Longer lists are not believed either: every second CPU, each as `8190,`.
const TEXT_BYTES_MAX: usize = CPUS_MAX / 2 * 5;

/// A set of CPUs (of nodes as well, which the kernel writes the same way), by the kernel's numbers.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus {
    /// Without zeros at the end, so that equal sets are equal.
    words: Vec<u64>,
}

impl Cpus {
    /// The empty set.
    pub fn new() -> Cpus {
        Cpus::default()
    }

    /// Adds a CPU; false if its number is not one.
    pub fn add(&mut self, cpu: usize) -> bool {
        if cpu >= CPUS_MAX {
            return false;
        }
        if self.words.len() <= cpu / 64 {
            self.words.resize(cpu / 64 + 1, 0);
        }
        self.words[cpu / 64] |= 1 << (cpu % 64);
        true
    }

    /// Is it in the set?
    pub fn has(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Upwards.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|cpu| self.has(*cpu))
    }

    /// The lowest.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// Those in both.
    pub fn and(&self, other: &Cpus) -> Cpus {
        Cpus::from_words(self.words.iter().zip(&other.words).map(|(one, other)| one & other).collect())
    }

    /// Those of `self` that are not in `other`.
    pub fn without(&self, other: &Cpus) -> Cpus {
        let others = other.words.iter().chain(std::iter::repeat(&0));
        Cpus::from_words(self.words.iter().zip(others).map(|(one, other)| one & !other).collect())
    }

    /// Those in either.
    pub fn or(&self, other: &Cpus) -> Cpus {
        let (long, short) = if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        words.iter_mut().zip(&short.words).for_each(|(one, other)| *one |= other);
        Cpus::from_words(words)
    }

    fn from_words(mut words: Vec<u64>) -> Cpus {
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        words.truncate(used);
        Cpus { words }
    }
}

impl FromIterator<usize> for Cpus {
    fn from_iter<T: IntoIterator<Item = usize>>(cpus: T) -> Cpus {
        let mut set = Cpus::new();
        cpus.into_iter().for_each(|cpu| {
            set.add(cpu);
        });
        set
    }
}

/// Not a list of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotCpus;

impl fmt::Display for NotCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a list of CPUs like 0-3,8 (numbers below {CPUS_MAX})")
    }
}

impl std::error::Error for NotCpus {}

impl FromStr for Cpus {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Cpus, NotCpus> {
        let mut set = Cpus::new();
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(NotCpus);
        }
        for range in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < CPUS_MAX);
            let (Some(first), Some(last)) = (number(first), number(last)) else { return Err(NotCpus) };
            if last < first {
                return Err(NotCpus);
            }
            (first..=last).for_each(|cpu| {
                set.add(cpu);
            });
        }
        Ok(set)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cpus, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, shown, count) in [
            ("0-3,8", "0-3,8", 5),
            ("", "", 0),
            ("\n", "", 0),
            ("5\n", "5", 1),
            ("0,1,2", "0-2", 3),
            ("8,0-1", "0-1,8", 3),
            ("8191", "8191", 1),
            ("0-8191", "0-8191", 8192),
        ] {
            let set: Cpus = text.parse().unwrap();
            assert_eq!((set.to_string().as_str(), set.len()), (shown, count), "{text:?}");
        }
    }

    #[test]
    fn what_no_kernel_writes_is_refused_and_costs_nothing() {
        for text in [
            "0-4294967295",
            "8192",
            "3-1",
            "-1",
            "0-",
            "a",
            "1,,2",
            "0-1-2",
            "0x1",
            "99999999999999999999999",
        ] {
            assert_eq!(text.parse::<Cpus>(), Err(NotCpus), "{text:?}");
        }
        assert_eq!("0-8191,".repeat(10_000).parse::<Cpus>(), Err(NotCpus));
        assert!(!Cpus::new().add(CPUS_MAX));
    }

    proptest! {
        #[test]
        fn sets_behave_like_sets(one in prop::collection::btree_set(0usize..300, 0..40),
                                 other in prop::collection::btree_set(0usize..300, 0..40)) {
            let (first, second): (Cpus, Cpus) = (one.iter().copied().collect(), other.iter().copied().collect());
            prop_assert_eq!(first.iter().collect::<Vec<_>>(), one.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(first.and(&second), one.intersection(&other).copied().collect());
            prop_assert_eq!(first.or(&second), one.union(&other).copied().collect());
            prop_assert_eq!(first.without(&second), one.difference(&other).copied().collect());
            prop_assert_eq!(first.to_string().parse::<Cpus>(), Ok(first));
        }
    }
}
