//! What a host allows, in `/etc/haul/policy.toml`. Whoever cannot read it allows nothing special: deny fails closed.

use std::path::Path;

use haul_model::Code;
use haul_mover::Error;

const PATH: &str = "/etc/haul/policy.toml";

/// May data travel in clear text from or to this host?
pub fn check_plain() -> Result<(), Error> {
    check_plain_in(Path::new(PATH))
}

fn check_plain_in(path: &Path) -> Result<(), Error> {
    let denied = |reason: String| {
        Err(Error::new(Code::PlainDenied, reason).hint("run the command again without --plain (where a file or the environment says it: with HAUL_PLAIN=no)"))
    };
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !leads_nowhere(path) => return Ok(()),
        Err(error) => return denied(format!("{shown} cannot be read: {error}")),
    };
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(_) => return denied(format!("{shown} is not valid TOML")),
    };
    // Who misspells what is to be denied has denied it.
    if let Some(other) = table.keys().find(|key| *key != "plain") {
        return denied(format!("{shown} says {other}, which is not known here"));
    }
    match table.get("plain").map(|value| value.as_str()) {
        None | Some(Some("allow")) => Ok(()),
        Some(Some("deny")) => denied(format!("{shown} says plain = \"deny\"")),
        Some(_) => denied(format!("{shown}: plain is neither \"allow\" nor \"deny\"")),
    }
}

/// Is a link on the way that leads to nothing, as where what it leads to is not mounted?
fn leads_nowhere(path: &Path) -> bool {
    path.ancestors().any(|path| path.is_symlink() && !path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_or_no_policy_allows_clear_data() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        assert!(check_plain_in(&path).is_ok(), "no policy");
        for (text, allowed) in [
            ("", true),
            ("plain = \"allow\"", true),
            ("plain = \"deny\"", false),
            ("plain = \"DENY\"", false),
            ("plain = true", false),
            ("plain = ", false),
            ("plian = \"deny\"", false),
            ("plain = \"allow\"\nother = 1", false),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(check_plain_in(&path).is_ok(), allowed, "{text}");
        }
        for (link, path) in [("link.toml", "link.toml"), ("link", "link/policy.toml")] {
            std::os::unix::fs::symlink("not-mounted", directory.path().join(link)).unwrap();
            assert!(check_plain_in(&directory.path().join(path)).is_err(), "a policy that is not there now");
        }
    }
}
