//! What is said of a command that there is none of.

use clap::Parser;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::Options;

/// What users type to continue a transfer, as other programs want it.
const TO_CONTINUE: [&str; 4] = ["resume", "continue", "restart", "retry"];
/// Not for users, so not for tips either.
const HIDDEN: &str = "serve";

impl Options {
    /// Of this process. One that is not well formed ends it.
    pub fn of_command_line() -> Options {
        Options::try_parse().unwrap_or_else(|error| helpful(error).exit())
    }
}

fn helpful(mut error: Error) -> Error {
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) if error.kind() == ErrorKind::InvalidSubcommand => typed.clone(),
        _ => return error,
    };
    // Other commands have subcommands, too.
    if std::env::args().nth(1).as_ref() != Some(&typed) {
        return error;
    }
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(|name| name != HIDDEN);
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    if TO_CONTINUE.contains(&typed.as_str()) {
        let tip = "the same 'haul cp' command again continues; 'haul status' lists what can be continued";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}
