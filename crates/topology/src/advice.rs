//! The plan that is carried out: the service's, where there is one and what it says can be carried out here, else one made alone.
//!
//! Threads of a copy ([`crate::Placer`]) and commands (`haul topology run`) both get theirs here, so that nobody carries out what
//! nobody has checked.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use crate::service::client::{Client, trouble};
use crate::{Cpus, Load, Machine, Plan, Transfer};

/// Who is asked, and for what.
pub struct Asking<'a> {
    /// Of the service.
    pub socket: &'a Path,
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
        match asking.ask(machine, transfer) {
            Ok((plan, client)) => {
                let service = matches!(plan, Plan::Placed(_)).then_some(client);
                Advice { plan, service, trouble: None }
            }
            Err(error) => {
                let trouble = trouble(asking.socket, &error);
                Advice { plan: alone(&load()), service: None, trouble }
            }
        }
    }
}

impl Asking<'_> {
    /// What the service says, if that can be carried out; anything else counts as no answer.
    fn ask(&self, machine: &Machine, transfer: &Transfer) -> io::Result<(Plan, Client)> {
        let mut client = Client::connect(self.socket, self.patience)?;
        let plan = if self.lease { client.lease(transfer)?.0 } else { client.look(transfer)? };
        let fits = match &plan {
            Plan::Placed(placement) => placement.fits(machine, &transfer.threads),
            Plan::LeaveToKernel { .. } => true,
        };
        let wrong = || io::Error::new(ErrorKind::InvalidData, "its plan is not for this process");
        fits.then_some((plan, client)).ok_or_else(wrong)
    }
}
