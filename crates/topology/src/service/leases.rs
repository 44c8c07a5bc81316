//! Who has which CPUs. Pure: connections and leases are numbers.

use std::collections::BTreeMap;

use crate::Cpus;

/// Leases of one connection at most.
pub const LEASES_MAX: usize = 64;

/// Which CPUs are whose.
#[derive(Default, Debug)]
pub struct Leases {
    /// By number: the connection that has it, and the CPUs.
    held: BTreeMap<u64, (u64, Cpus)>,
    last: u64,
}

impl Leases {
    /// All CPUs that somebody has.
    pub fn taken(&self) -> Cpus {
        self.held.values().fold(Cpus::new(), |all, (_, cpus)| all.or(cpus))
    }

    /// Gives CPUs to a connection; none if it has too many leases. They must be free.
    pub fn give(&mut self, connection: u64, cpus: Cpus) -> Option<u64> {
        assert!(self.taken().and(&cpus).is_empty(), "CPUs {cpus} are leased twice");
        if self.held.values().filter(|(holder, _)| *holder == connection).count() >= LEASES_MAX {
            return None;
        }
        self.last += 1;
        self.held.insert(self.last, (connection, cpus));
        Some(self.last)
    }

    /// Does the connection have any?
    pub fn has(&self, connection: u64) -> bool {
        self.held.values().any(|(holder, _)| *holder == connection)
    }

    /// Takes one back that the connection has.
    pub fn release(&mut self, connection: u64, lease: u64) -> Option<Cpus> {
        let (holder, _) = self.held.get(&lease)?;
        if *holder != connection {
            return None;
        }
        self.held.remove(&lease).map(|(_, cpus)| cpus)
    }

    /// Takes all back that a connection has.
    pub fn end(&mut self, connection: u64) {
        self.held.retain(|_, (holder, _)| *holder != connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> Cpus {
        list.parse().unwrap()
    }

    #[test]
    fn a_lease_ends_with_its_connection_or_when_its_holder_says_so() {
        let mut leases = Leases::default();
        let first = leases.give(1, cpus("0-3")).unwrap();
        let second = leases.give(2, cpus("4-5")).unwrap();
        let third = leases.give(2, cpus("6")).unwrap();
        assert_eq!(leases.taken(), cpus("0-6"));
        assert_eq!(leases.release(2, first), None, "somebody else's");
        assert_eq!(leases.release(2, 99), None);
        assert_eq!(leases.release(2, second), Some(cpus("4-5")));
        assert_eq!(leases.release(2, second), None, "again");
        leases.end(2);
        assert_eq!(leases.taken(), cpus("0-3"));
        assert!(leases.give(3, cpus("6")).unwrap() > third, "numbers are not used again");
    }

    #[test]
    fn one_connection_has_a_bounded_number() {
        let mut leases = Leases::default();
        for cpu in 0..LEASES_MAX {
            assert!(leases.give(1, Cpus::from_iter([cpu])).is_some());
        }
        assert_eq!(leases.give(1, cpus("900")), None);
        assert!(leases.give(2, cpus("900")).is_some());
    }

    #[test]
    #[should_panic(expected = "leased twice")]
    fn no_cpu_is_given_twice() {
        let mut leases = Leases::default();
        leases.give(1, cpus("0-3"));
        leases.give(2, cpus("3"));
    }
}
