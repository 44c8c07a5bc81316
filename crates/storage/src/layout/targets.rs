//! Numbers and names of targets.
//!
//! A file system chooses the names, so neither their number nor their length may be without bound: beyond
//! [`TARGETS_MAX`] new ones share the numbers of old ones. Sharing costs speed, no more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_model::TargetId;

/// So many targets are told apart.
pub const TARGETS_MAX: usize = 4096;
/// Longer names are cut.
pub const NAME_BYTES_MAX: usize = 256;

/// Where a name means something: two Lustre file systems both have an OST0000.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Domain {
    /// On all of this host: disks, and the names in a layout file.
    Host,
    /// On the file system with this `st_dev`.
    Device(u64),
}

/// A target that some layout named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its number.
    pub id: TargetId,
    /// Its name: unique in its domain.
    pub name: Arc<str>,
    /// Where the name means something.
    pub domain: Domain,
}

impl Target {
    /// The same for all processes of this host, whatever numbers they gave: a file system has one `st_dev` for all.
    pub fn identity(&self) -> u64 {
        mixed(self.domain, &self.name)
    }
}

/// All targets that any layout named.
#[derive(Default)]
pub struct Targets {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    ids: HashMap<(Domain, Arc<str>), TargetId>,
    targets: Vec<Target>,
}

impl Targets {
    /// The number of a name, given on first sight.
    pub fn id(&self, domain: Domain, name: &str) -> TargetId {
        let name: Arc<str> = cut(name).into();
        let mut table = self.lock();
        let key = (domain, name);
        if let Some(id) = table.ids.get(&key) {
            return *id;
        }
        if table.targets.len() >= TARGETS_MAX {
            return TargetId((mixed(domain, &key.1) % TARGETS_MAX as u64) as u32);
        }
        let id = TargetId(table.targets.len() as u32);
        table.targets.push(Target { id, name: Arc::clone(&key.1), domain });
        table.ids.insert(key, id);
        id
    }

    /// The number of several targets that count as one. Called by their names, in the order of these: numbers are of this process.
    /// Many of them are called by how many they are, and a hash of which.
    pub fn set(&self, domain: Domain, members: &[TargetId]) -> TargetId {
        let mut names: Vec<_> = members.iter().map(|member| self.describe(*member)).collect();
        names.sort_unstable();
        let name = names.join("+");
        if name.len() <= NAME_BYTES_MAX {
            return self.id(domain, &name);
        }
        self.id(domain, &format!("{} targets {:016x}", members.len(), mixed(domain, &name)))
    }

    /// The name of a number that [`id`](Self::id) gave.
    pub fn describe(&self, id: TargetId) -> Arc<str> {
        if id == TargetId::ARCHIVE {
            return "archive".into();
        }
        let table = self.lock();
        table.targets.get(id.0 as usize).map_or_else(|| "unknown".into(), |target| Arc::clone(&target.name))
    }

    /// All that were given, in order of number.
    pub fn all(&self) -> Vec<Target> {
        self.lock().targets.clone()
    }

    /// Those that were given since there were `from` of them.
    pub fn since(&self, from: usize) -> Vec<Target> {
        self.lock().targets.get(from..).unwrap_or_default().to_vec()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The beginning of a name, whole characters only.
fn cut(name: &str) -> &str {
    let end = (0..=name.len().min(NAME_BYTES_MAX)).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// FNV-1a: the same name gets the same number in every run.
fn mixed(domain: Domain, name: &str) -> u64 {
    let device = match domain {
        Domain::Host => 0,
        Domain::Device(device) => device,
    };
    let bytes = device.to_le_bytes().into_iter().chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_target_on_its_file_system() {
        let targets = Targets::default();
        let first = targets.id(Domain::Device(1), "OST0000");
        assert_eq!(targets.id(Domain::Device(1), "OST0000"), first);
        assert_ne!(targets.id(Domain::Device(2), "OST0000"), first);
        assert_ne!(targets.id(Domain::Host, "OST0000"), first);
        assert_eq!(&*targets.describe(first), "OST0000");
        assert_eq!(targets.all().len(), 3);
    }

    #[test]
    fn a_set_of_targets_has_a_number_of_its_own() {
        let targets = Targets::default();
        let domain = Domain::Device(1);
        let ids: Vec<_> = (0..300).map(|number| targets.id(domain, &format!("OST{number:04x}"))).collect();
        let pair = targets.set(domain, &ids[..2]);
        assert_eq!(&*targets.describe(pair), "OST0000+OST0001");
        assert_eq!(targets.set(domain, &ids[..2]), pair);
        assert_ne!(targets.set(domain, &ids[..3]), pair);
        // Their names begin alike.
        assert_ne!(targets.set(domain, &ids[..299]), targets.set(domain, &ids));
    }

    #[test]
    fn processes_that_met_targets_in_another_order_know_them_by_the_same_identities() {
        let names = [(Domain::Device(1), "OST0000"), (Domain::Device(2), "OST0000"), (Domain::Host, "sda")];
        let identities = |order: &mut dyn Iterator<Item = &(Domain, &str)>| {
            let targets = Targets::default();
            let mut members: Vec<_> = order.map(|(domain, name)| targets.id(*domain, name)).collect();
            members.sort_unstable();
            targets.set(Domain::Device(1), &members);
            let mut found: Vec<_> = targets.since(0).iter().map(Target::identity).collect();
            assert_eq!(targets.since(1).len() + 1, found.len());
            assert_eq!(targets.since(9), []);
            found.sort_unstable();
            found.dedup();
            found
        };
        let found = identities(&mut names.iter());
        assert_eq!(found.len(), 4);
        assert_eq!(identities(&mut names.iter().rev()), found);
    }

    #[test]
    fn no_file_system_can_make_the_table_grow_without_bound() {
        let targets = Targets::default();
        for number in 0..3 * TARGETS_MAX {
            let id = targets.id(Domain::Device(number as u64 / 1000), &format!("target {number}"));
            assert!((id.0 as usize) < TARGETS_MAX);
            assert_eq!(targets.id(Domain::Device(number as u64 / 1000), &format!("target {number}")), id);
        }
        assert_eq!(targets.all().len(), TARGETS_MAX);
        let other = Targets::default();
        let id = other.id(Domain::Host, &format!("a{}", "é".repeat(1 << 20)));
        assert_eq!(other.describe(id).len(), NAME_BYTES_MAX - 1, "no half character");
    }
}
