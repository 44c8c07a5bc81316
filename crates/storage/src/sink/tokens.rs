//! Names of unfinished files: `.haul-<token>`, and `.haul-<token>.sums` for the hashes of its objects.
//!
//! Where a file system places a file by its name (GlusterFS), it is `.<name>.haul-<token>`: that is placed where `<name>` will be
//! (of what begins with a dot and ends with another one and what is behind it, only what is between them counts), and to name
//! the complete file moves nothing and leaves no pointer on another brick.
//!
//! Files that are made for a moment, to see which names are taken, have one of these, or one that ends in a dot or a blank, or has
//! the name of a device (`aux`) in front.
//!
//! A token is never derived from the file's own name, and no entry of a dataset may have a name of these forms: so nothing
//! that a source sends can be, or become, an unfinished file.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_model::Token;

const PREFIX: &[u8] = b".haul-";
const SUMS: &[u8] = b".sums";
/// Names that end so are none on Windows, nor where somebody sees to that (SMB, ntfs-3g with `windows_names`).
const ODD_ENDS: [&[u8]; 2] = [b".", b" "];
const NAME_BYTES: usize = PREFIX.len() + 32;
/// Of file systems as they are.
const NAME_MAX: usize = 255;

/// The name of an unfinished file or of its hashes; made on the stack because every small file needs one.
pub(crate) struct TempName {
    /// Followed by at least one NUL.
    bytes: [u8; NAME_MAX + 1],
    length: usize,
}

impl TempName {
    fn new() -> Self {
        TempName { bytes: [0; NAME_MAX + 1], length: 0 }
    }

    fn with(mut self, part: &[u8]) -> Self {
        self.bytes[self.length..][..part.len()].copy_from_slice(part);
        self.length += part.len();
        self
    }

    fn with_token(self, token: Token) -> Self {
        let mut digits = [0; NAME_BYTES - PREFIX.len()];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(token.0) {
            pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        self.with(PREFIX).with(&digits)
    }

    /// Of the contents.
    pub fn contents(token: Token) -> Self {
        TempName::new().with_token(token)
    }

    /// Of the contents of what will have this name, where it is placed by that; as ever where there is no room for it.
    pub fn placed_as(name: &[u8], token: Token) -> Self {
        let name = counting(name).unwrap_or(name);
        TempName::around(name, token).unwrap_or_else(|| TempName::contents(token))
    }

    /// With all of this name in it, if there is room for it.
    pub fn around(name: &[u8], token: Token) -> Option<Self> {
        let has_room = 1 + name.len() + NAME_BYTES <= NAME_MAX;
        has_room.then(|| TempName::new().with(b".").with(name).with_token(token))
    }

    /// For a trial: begins with the name of a device, as `name` does, if it does.
    pub fn of_device(name: &[u8], token: Token) -> Option<Self> {
        let stem = name.split(|byte| *byte == b'.').next()?;
        is_device(stem).then(|| TempName::new().with(stem).with_token(token))
    }

    /// For a trial: ends as `name` does, if that is in a way that Windows does not take.
    pub fn ending_as(name: &[u8], token: Token) -> Option<Self> {
        let end = ODD_ENDS.iter().find(|end| name.ends_with(end))?;
        Some(TempName::contents(token).with(end))
    }

    /// Of the hashes of its objects.
    pub fn sums(token: Token) -> Self {
        TempName::contents(token).with(SUMS)
    }

    /// For system calls.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("a NUL always follows the name")
    }

    /// Without NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Which unfinished file a name belongs to, exactly as [`TempName`] writes it; `None` for every other name.
pub(crate) fn parse(name: &[u8]) -> Option<Token> {
    let ends = || [SUMS].into_iter().chain(ODD_ENDS).find_map(|end| name.strip_suffix(end));
    let own = placed(name).or_else(ends).unwrap_or(name);
    let digits = own.strip_prefix(PREFIX)?;
    if digits.len() != 32 {
        return None;
    }
    let mut token = Token([0; 16]);
    for (byte, pair) in token.0.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(token)
}

/// What is behind the name of the complete file, if there is one.
fn placed(name: &[u8]) -> Option<&[u8]> {
    let (before, own) = name.split_at_checked(name.len().checked_sub(NAME_BYTES)?)?;
    let is_own = own[..PREFIX.len()].eq_ignore_ascii_case(PREFIX);
    let may_be_before = before.len() > 1 && before[0] == b'.' || is_device(before);
    (is_own && may_be_before).then_some(own)
}

/// Names that Windows keeps for devices, whatever follows behind a dot.
fn is_device(stem: &[u8]) -> bool {
    let is_one_of = |names: &[&[u8]], stem: &[u8]| names.iter().any(|name| name.eq_ignore_ascii_case(stem));
    match stem {
        [port @ .., b'1'..=b'9'] => is_one_of(&[b"com", b"lpt"], port),
        _ => is_one_of(&[b"con", b"prn", b"aux", b"nul"], stem),
    }
}

/// The part of a name that places the file, where that is not all of it.
fn counting(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?;
    let end = rest.iter().rposition(|byte| *byte == b'.')?;
    (end > 0 && end + 1 < rest.len()).then(|| &rest[..end])
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

/// Names that no entry may have: everything that starts like an unfinished file, in any case, because some file
/// systems do not tell cases apart.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    let begins = |name: &[u8]| {
        name.len() >= NAME_BYTES
            && name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)
            && name[PREFIX.len()..NAME_BYTES].iter().all(u8::is_ascii_hexdigit)
    };
    begins(name) || placed(name).is_some_and(begins)
}

/// Makes the tokens of one session; each only once.
pub(crate) struct TokenMaker {
    tags: [u8; 10],
    next: AtomicU64,
}

impl TokenMaker {
    /// For the session `session_tag` of the job `job_tag`.
    pub fn new(job_tag: [u8; 6], session_tag: [u8; 4]) -> Self {
        let mut tags = [0; 10];
        tags[..6].copy_from_slice(&job_tag);
        tags[6..].copy_from_slice(&session_tag);
        let mut seed = [0; 8];
        // Without randomness names can be guessed, but O_EXCL still refuses whatever was planted there.
        let _ = getrandom::fill(&mut seed);
        TokenMaker { tags, next: AtomicU64::new(u64::from_le_bytes(seed)) }
    }

    /// A token that was never returned before.
    pub fn make(&self) -> Token {
        loop {
            // Multiplying by an odd number permutes the low 48 bits: unique, and not in sequence.
            let mixed = self.next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut token = Token([0; 16]);
            token.0[..10].copy_from_slice(&self.tags);
            token.0[10..].copy_from_slice(&mixed.to_le_bytes()[..6]);
            if token != Token::NONE {
                return token;
            }
        }
    }

    /// Made by this session, or by one with the same tags.
    pub fn is_of_session(&self, token: Token) -> bool {
        token.0[..10] == self.tags
    }

    /// Made by any session of this job.
    pub fn is_of_job(&self, token: Token) -> bool {
        token.job_tag() == &self.tags[..6]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_token_and_nothing_else_does() {
        let token = Token(*b"\x00\x01\x02\xfd\xfe\xffjob-and-so");
        let contents = TempName::contents(token);
        assert_eq!(contents.as_bytes(), b".haul-000102fdfeff6a6f622d616e642d736f");
        assert_eq!(contents.as_c_str().to_bytes(), contents.as_bytes());
        assert_eq!(TempName::sums(token).as_bytes(), b".haul-000102fdfeff6a6f622d616e642d736f.sums");
        assert_eq!(TempName::sums(token).as_c_str().to_bytes(), TempName::sums(token).as_bytes());
        assert_eq!(parse(contents.as_bytes()), Some(token));
        assert_eq!(parse(TempName::sums(token).as_bytes()), Some(token));
        for other in [&b".haul-"[..], b".haul-00", b"x", b".haul-000102FDFEFF6a6f622d616e642d736f", b""] {
            assert_eq!(parse(other), None);
        }
        assert_eq!(parse(b".haul-000102fdfeff6a6f622d616e642d736f.sum"), None);
    }

    #[test]
    fn what_is_placed_by_its_name_has_it_in_front_of_the_token() {
        let token = Token(*b"\x00\x01\x02\xfd\xfe\xffjob-and-so");
        let name = |name: &[u8]| TempName::placed_as(name, token).as_bytes().to_vec();
        assert_eq!(name(b"data.nc"), b".data.nc.haul-000102fdfeff6a6f622d616e642d736f");
        assert_eq!(TempName::placed_as(b"x", token).as_c_str().to_bytes(), name(b"x"));
        // Placed by a part of it.
        for (whole, part) in [
            (&b".data.nc"[..], &b"data"[..]),
            (b".a.b.c", b"a.b"),
            (b"..b.c", b".b"),
            (b".data", b".data"),
            (b".data.", b".data."),
            (b"..nc", b"..nc"),
            (b"data.nc", b"data.nc"),
        ] {
            assert_eq!(name(whole), [b".", part, b".haul-000102fdfeff6a6f622d616e642d736f"].concat());
        }
        for length in [1, 2, 38, 216, 217, 255] {
            let long = vec![b'x'; length];
            let placed = name(&long);
            assert_eq!(placed.len(), if length <= 216 { length + 39 } else { NAME_BYTES }, "{length}");
            assert_eq!(parse(&placed), Some(token), "{length}");
            assert!(is_reserved(&placed), "{length}");
        }
        // A name that only ends like one, and one without a name in it.
        for other in [
            &b"data.haul-000102fdfeff6a6f622d616e642d736f"[..],
            b"..haul-000102fdfeff6a6f622d616e642d736f.sums",
        ] {
            assert_eq!(parse(other), None);
        }
        assert!(is_reserved(b".Data.HAUL-000102FDFEFF6a6f622d616e642d736f"));
        assert!(!is_reserved(b"data.haul-000102fdfeff6a6f622d616e642d736f"));
        assert!(!is_reserved(b".data.haul-000102fdfeff6a6f622d616e642d736f0"));
    }

    #[test]
    fn trials_of_names_say_their_token_too() {
        let token = Token(*b"\x00\x01\x02\xfd\xfe\xffjob-and-so");
        let own = ".haul-000102fdfeff6a6f622d616e642d736f";
        let device = |name: &str| TempName::of_device(name.as_bytes(), token);
        let ending = |name: &str| TempName::ending_as(name.as_bytes(), token);
        let around = |name: &str| TempName::around(name.as_bytes(), token);
        for (tried, expected) in [
            (device("aux.dat"), format!("aux{own}")),
            (device("Com1"), format!("Com1{own}")),
            (device("LPT9.a.b"), format!("LPT9{own}")),
            (ending("big."), format!("{own}.")),
            (ending("a. "), format!("{own} ")),
            (around(".x.y"), format!("..x.y{own}")),
        ] {
            let tried = tried.unwrap();
            assert_eq!(tried.as_bytes(), expected.as_bytes());
            assert!(parse(tried.as_bytes()) == Some(token) && is_reserved(tried.as_bytes()), "{expected}");
        }
        for name in ["auxiliary", "com0", "com", "com11", "lpt", "xaux", "", "config.toml", ".aux"] {
            assert!(device(name).is_none(), "{name}");
        }
        assert!(ending("big.x").is_none() && around(&"x".repeat(217)).is_none());
    }

    #[test]
    fn every_spelling_of_an_unfinished_name_is_reserved() {
        assert!(is_reserved(b".haul-000102fdfeff6a6f622d616e642d736f"));
        assert!(is_reserved(b".haul-000102fdfeff6a6f622d616e642d736f.sums"));
        assert!(is_reserved(b".haul-000102fdfeff6a6f622d616e642d736f and more"));
        assert!(is_reserved(b".HAUL-000102FDFEFF6a6f622d616e642d736f"));
        assert!(!is_reserved(b".haul-notes"));
        assert!(!is_reserved(b".haul-000102fdfeff6a6f622d616e642d736"));
        assert!(!is_reserved(b".haul-000102fdfeff6a6f622d616e642d736g"));
    }

    #[test]
    fn tokens_are_unique_and_carry_their_tags() {
        let maker = TokenMaker::new(*b"abcdef", *b"1234");
        let made: std::collections::HashSet<_> = (0..10_000).map(|_| maker.make()).collect();
        assert_eq!(made.len(), 10_000);
        assert!(made.iter().all(|token| maker.is_of_session(*token) && maker.is_of_job(*token)));
        let later = TokenMaker::new(*b"abcdef", *b"5678");
        assert!(made.iter().all(|token| !later.is_of_session(*token) && later.is_of_job(*token)));
    }
}
