//! Names of unfinished files: `.haul-<token>`, and `.haul-<token>.sums` for the hashes of its objects.
//!
//! A name is never derived from the file's own name, and no entry of a dataset may have one of this form: so nothing
//! that a source sends can be, or become, an unfinished file.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_model::Token;

const PREFIX: &[u8] = b".haul-";
const SUMS: &[u8] = b".sums";
const NAME_BYTES: usize = PREFIX.len() + 32;

/// The name of an unfinished file or of its hashes; made on the stack because every small file needs one.
pub(crate) struct TempName {
    /// Followed by at least one NUL.
    bytes: [u8; NAME_BYTES + SUMS.len() + 1],
    length: usize,
}

impl TempName {
    /// Of the contents.
    pub fn contents(token: Token) -> Self {
        let mut bytes = [0; NAME_BYTES + SUMS.len() + 1];
        bytes[..PREFIX.len()].copy_from_slice(PREFIX);
        for (pair, byte) in bytes[PREFIX.len()..NAME_BYTES].chunks_exact_mut(2).zip(token.0) {
            pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        TempName { bytes, length: NAME_BYTES }
    }

    /// Of the hashes of its objects.
    pub fn sums(token: Token) -> Self {
        let mut name = Self::contents(token);
        name.bytes[NAME_BYTES..NAME_BYTES + SUMS.len()].copy_from_slice(SUMS);
        name.length += SUMS.len();
        name
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
    let rest = name.strip_prefix(PREFIX)?;
    let digits = rest.strip_suffix(SUMS).unwrap_or(rest);
    if digits.len() != 32 {
        return None;
    }
    let mut token = Token([0; 16]);
    for (byte, pair) in token.0.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(token)
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
    name.len() >= NAME_BYTES
        && name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)
        && name[PREFIX.len()..NAME_BYTES].iter().all(u8::is_ascii_hexdigit)
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
