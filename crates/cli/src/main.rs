//! `haul`: moves datasets between file systems and hosts, and never loses its place.
//!
//! The binary only parses, plans and reports. `options` is the command line, `settings` finds each value and its origin,
//! `plan` makes a job of it, `job` keeps the job's record, `ends` makes its ends ready, `session` runs it (here, or with a far end started over ssh by
//! `ssh` and greeted by `bootstrap`) until it has ended or `interrupt` ends it, `serve` is that far end, `report` tells the
//! user, of paths as they were `typed`;
//! `within` finds a directory that would be copied into itself; `log_show` shows what `log_document` has read of object
//! logs; `layout` looks up layouts, which `layout_report` shows; `topology` shows the host and serves plans.

mod alike;
mod bar;
mod bench;
mod bootstrap;
mod congestion;
mod elsewhere;
mod ends;
mod engines;
mod explain;
mod initiator;
mod interrupt;
mod job;
mod kin;
mod layout;
mod layout_report;
mod log_document;
mod log_show;
mod options;
mod past;
mod paths;
mod patience;
mod placement;
mod plan;
mod policy;
mod profile;
mod report;
mod serve;
mod session;
mod settings;
mod signals;
mod ssh;
mod status;
mod told;
mod topology;
mod typed;
mod within;

use std::io::Write;
use std::process::ExitCode;

use options::{Command, LogCommand, Options};

fn main() -> ExitCode {
    end_with_any_thread();
    signals::outlive_large_files();
    signals::hear_of_children();
    signals::unblock();
    let options = Options::of_command_line();
    if matches!(options.command, Command::Cp(_) | Command::Serve(_)) {
        // Before there is a second thread.
        haul_storage::local::make_room_for_descriptors();
        haul_storage::local::share_heaps_where_addresses_are_few();
    }
    let result = match options.command {
        Command::Cp(arguments) => session::copy(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Stop(arguments) => status::stop(&arguments),
        Command::Log(options::Log { command: LogCommand::Show(arguments) }) => log_show::log_show(&arguments),
        Command::Layout(arguments) => layout::layout(&arguments),
        Command::Topology(arguments) => topology::topology(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Bench(arguments) => bench::bench(arguments),
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Generate(arguments) => options::generate(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            report::error(&error);
            ExitCode::from(error.failure.code.exit())
        }
    }
}

/// A thread that ends by a mistake of ours ends the process: others would wait for it for ever. What is durable is so.
fn end_with_any_thread() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        let _ = writeln!(std::io::stderr(), "haul: internal error; run the same command again to continue");
        std::process::exit(i32::from(haul_model::Code::Internal.exit()));
    }));
}
