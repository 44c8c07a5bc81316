//! The plan that is carried out: the service's, where there is one and what it says can be carried out here, else one made alone.
//!
//! Threads of a copy ([`crate::Placer`]) and commands (`haul topology run`) both get theirs here, so that nobody carries out what
//! nobody has checked.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::service::client::{Client, trouble};
use crate::{Cpus, Load, Machine, Plan, Transfer};

/// Who is asked, and for what.
pub struct Asking<'a> {
    /// Where the service may be; the first one that is there counts.
    pub sockets: &'a [PathBuf],
    /// How long it may take to answer.
    pub patience: Duration,
    /// Keep the CPUs of the plan from others, for as long as the connection is there.
    pub lease: bool,
}

/// A plan that can be carried out.
pub struct Advice {
    /// Where threads belong.
    pub plan: Plan,
    /// The service whose plan it is, if it gives out CPUs. Keeps the lease.
    pub service: Option<Client>,
    /// Why the service that is there was done without, in words.
    pub trouble: Option<String>,
}

impl Advice {
    /// For a transfer on this machine. The load is looked at only where this has to be planned alone.
    pub fn of(
        machine: &Machine,
        transfer: &Transfer,
        asking: &Asking<'_>,
        load: impl FnOnce() -> Load,
    ) -> Advice {
        let alone = |load: &Load| Plan::of(machine, load, &Cpus::new(), transfer);
        // Where there is nothing to gain on an idle machine that is nobody else's, there is nothing to ask for either.
        let plan = alone(&Load::default());
        if matches!(plan, Plan::LeaveToKernel { .. }) {
            return Advice { plan, service: None, trouble: None };
        }
        // Whoever chose these CPUs has leased them already.
        if machine.limits.chosen {
            return Advice { plan: alone(&load()), service: None, trouble: None };
        }
        match asking.ask(machine, transfer) {
            Ok((plan, client)) => {
                let service = matches!(plan, Plan::Placed(_)).then_some(client);
                Advice { plan, service, trouble: None }
            }
            Err((socket, error)) => {
                let trouble = trouble(socket, &error);
                Advice { plan: alone(&load()), service: None, trouble }
            }
        }
    }
}

impl Asking<'_> {
    /// What the service says, if that can be carried out; anything else counts as no answer.
    fn ask(&self, machine: &Machine, transfer: &Transfer) -> Result<(Plan, Client), (&Path, io::Error)> {
        let (socket, client) = Client::find(self.sockets, self.patience)?;
        self.ask_of(client, machine, transfer).map_err(|error| (socket, error))
    }

    fn ask_of(
        &self,
        mut client: Client,
        machine: &Machine,
        transfer: &Transfer,
    ) -> io::Result<(Plan, Client)> {
        // It has a map of its own, which may be older.
        let known = transfer.clone().with_mapped(machine);
        let plan = if self.lease { client.lease(&known)?.0 } else { client.look(&known)? };
        let fits = match &plan {
            Plan::Placed(placement) => placement.fits(machine, &transfer.threads),
            Plan::LeaveToKernel { .. } => true,
        };
        let wrong = || io::Error::new(ErrorKind::InvalidData, "its plan is not for this process");
        fits.then_some((plan, client)).ok_or_else(wrong)
    }
}
