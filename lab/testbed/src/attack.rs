//! What is done to a run while it moves data.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use haul_crashfs::random::Random;
use rustix::net::{AddressFamily, Shutdown, getsockname, shutdown, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

use crate::process::signal;
use crate::world::{Route, Running};

/// Who is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// The end where the command was typed.
    Near,
    /// The end that ssh started.
    Far,
    /// Both, as one.
    Both,
    /// Only the ssh process between them.
    Ssh,
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// SIGKILL.
    Kill(Victim),
    /// SIGSTOP for a time, then SIGCONT; the run itself has to go on.
    Pause(Victim, Duration),
    /// SIGSTOP, and the command is typed again meanwhile; SIGCONT only after the second run is done. Where it is the
    /// far end that hangs, the near one dies.
    Supersede(Victim),
    /// Every data connection of an end, or some, are shut down under its hands.
    Cut {
        /// Share of the connections, of 256.
        share: u16,
    },
}

/// What [`Attack::name`] says.
pub const NAMES: [&str; 7] = ["kill near", "kill far", "kill both", "kill ssh", "pause", "supersede", "cut"];
/// So often is drawn for one that has a wanted name; the rarest is every twentieth.
const DRAWS_MAX: u32 = 1000;

impl Attack {
    /// One that fits the route and has one of these names; any that fits where no name is wanted, or none of them fits.
    pub fn choose_named(random: &mut Random, route: Route, wanted: &[String]) -> Attack {
        let mut attack = Attack::choose(random, route);
        for _ in 0..DRAWS_MAX {
            if wanted.is_empty() || wanted.iter().any(|name| name == attack.name()) {
                break;
            }
            attack = Attack::choose(random, route);
        }
        attack
    }

    /// One that fits the route.
    pub fn choose(random: &mut Random, route: Route) -> Attack {
        if route == Route::Local {
            return match random.below(10) {
                0 => Attack::Pause(Victim::Near, Duration::from_millis(random.between(50, 1500))),
                1..=2 => Attack::Supersede(Victim::Near),
                _ => Attack::Kill(Victim::Near),
            };
        }
        let end = *random.pick(&[Victim::Near, Victim::Far]);
        match random.below(20) {
            0..=5 => Attack::Kill(Victim::Near),
            6..=11 => Attack::Kill(Victim::Far),
            12..=13 => Attack::Kill(Victim::Both),
            14 => Attack::Kill(Victim::Ssh),
            15 => Attack::Pause(end, Duration::from_millis(random.between(50, 1500))),
            16..=17 => Attack::Supersede(end),
            _ => Attack::Cut { share: *random.pick(&[64, 128, 256]) },
        }
    }

    /// A word for the summary table.
    pub fn name(&self) -> &'static str {
        match self {
            Attack::Kill(Victim::Near) => "kill near",
            Attack::Kill(Victim::Far) => "kill far",
            Attack::Kill(Victim::Both) => "kill both",
            Attack::Kill(Victim::Ssh) => "kill ssh",
            Attack::Pause(..) => "pause",
            Attack::Supersede(_) => "supersede",
            Attack::Cut { .. } => "cut",
        }
    }

    /// Strikes; returns who was hit.
    pub fn strike(&self, run: &Running) -> Vec<i32> {
        match self {
            Attack::Kill(victim) => hit(&victims(*victim, run), Signal::KILL),
            Attack::Pause(victim, _) | Attack::Supersede(victim) => hit(&victims(*victim, run), Signal::STOP),
            Attack::Cut { share } => {
                let mut random = Random::new(run.near() as u64);
                let mut ends = vec![run.near()];
                ends.extend(run.far().last());
                let end = *random.pick(&ends);
                if cut_connections(end, *share, &mut random) > 0 { vec![end] } else { Vec::new() }
            }
        }
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attack::Pause(victim, time) => write!(formatter, "pause {victim:?} {:.1} s", time.as_secs_f64()),
            Attack::Supersede(victim) => write!(formatter, "stop {victim:?} and supersede"),
            Attack::Cut { share } => write!(formatter, "cut {share}/256 of the connections"),
            Attack::Kill(_) => formatter.write_str(self.name()),
        }
    }
}

fn victims(victim: Victim, run: &Running) -> Vec<i32> {
    let far = run.far().last().copied();
    match victim {
        Victim::Near => vec![run.near()],
        Victim::Far => far.into_iter().collect(),
        Victim::Both => far.into_iter().chain([run.near()]).collect(),
        Victim::Ssh => run.ssh(),
    }
}

fn hit(pids: &[i32], with: Signal) -> Vec<i32> {
    pids.iter().copied().filter(|pid| signal(*pid, with)).collect()
}

/// Shuts TCP connections of another process down, as a reset on the way would; how many.
///
/// The descriptor is borrowed from the process (which must be one's own, or below one as an ordinary user).
pub fn cut_connections(pid: i32, share: u16, random: &mut Random) -> usize {
    let Some(process) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return 0;
    };
    let numbers =
        fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
            target.to_str()?.starts_with("socket:").then_some(number)
        });
    let mut cut = 0;
    for number in numbers {
        let Ok(socket) = pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty()) else { continue };
        let is_tcp = getsockname(&socket).is_ok_and(|address| {
            matches!(address.address_family(), AddressFamily::INET | AddressFamily::INET6)
        });
        // A network can cut connections, not close the port that somebody listens on.
        let listens = sockopt::socket_acceptconn(&socket).unwrap_or(false);
        if is_tcp && !listens && random.chance(share) && shutdown(&socket, Shutdown::Both).is_ok() {
            cut += 1;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_cut_ends_connections_and_leaves_other_descriptors_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // `cat` on a connection: both its input and output are the socket.
        let stream = TcpStream::connect(address).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let input: std::os::fd::OwnedFd = stream.into();
        let mut child = crate::process::Guarded::spawn(
            std::process::Command::new("cat").stdin(input).stdout(std::process::Stdio::piped()),
        )
        .unwrap();
        assert_eq!(cut_connections(child.pid(), 0, &mut Random::new(1)), 0);
        assert_eq!(cut_connections(child.pid(), 256, &mut Random::new(1)), 1);
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
        assert!(child.wait(Duration::from_secs(5)).unwrap().success());
    }

    #[test]
    fn every_kind_of_attack_is_chosen_and_local_runs_have_no_far_end() {
        let mut random = Random::new(3);
        let names: std::collections::BTreeSet<_> =
            (0..500).map(|_| Attack::choose(&mut random, Route::Push).name()).collect();
        assert_eq!(names, NAMES.into_iter().collect());
        assert!((0..500).all(|_| {
            !matches!(
                Attack::choose(&mut random, Route::Local),
                Attack::Kill(Victim::Far | Victim::Both | Victim::Ssh)
            )
        }));
    }

    #[test]
    fn only_what_is_wanted_is_chosen_where_it_fits() {
        let mut random = Random::new(4);
        for name in NAMES {
            let wanted = [name.to_owned()];
            assert!(
                (0..50).all(|_| Attack::choose_named(&mut random, Route::Pull, &wanted).name() == name),
                "{name}"
            );
        }
        // There is no far end, and something has to happen all the same.
        Attack::choose_named(&mut random, Route::Local, &["kill far".to_owned()]);
        let mut same = random.clone();
        assert_eq!(
            Attack::choose_named(&mut random, Route::Push, &[]),
            Attack::choose(&mut same, Route::Push),
            "a seed means the same attacks with this option and without it"
        );
    }
}
