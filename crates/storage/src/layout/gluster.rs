//! GlusterFS: which bricks hold a file.
//!
//! The virtual attribute `glusterfs.pathinfo` (anyone may ask; `trusted.glusterfs.pathinfo` is the same for root) is
//! a text that each layer of the volume puts its brackets around:
//!
//! ```text
//! (<DISTRIBUTE:vol-dht> <POSIX(/brick/b4):host4:/brick/b4/dir/file>)
//! (<DISTRIBUTE:vol-dht> (<REPLICATE:vol-replicate-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>))
//! (<DISTRIBUTE:vol-dht> (<EC:vol-disperse-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f> <POSIX(/b3):h3:/b3/f>))
//! (<STRIPE:vol-stripe-0:[131072]> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>)
//! ```
//!
//! Bricks of a replicated or dispersed set work together on every write, so the set is one target. They are told in the
//! order in which they answered. (Of a set that is all of a volume, 10.3 tells nothing if it is dispersed: `ENOMEM`.) A volume with shards
//! tells of the first shard only. Where its block size can be read (root, on a mount that shows the internals) the rest
//! of the file is put on one target for all shards of the mount; elsewhere it cannot be told from a file that lies whole
//! on its brick.
//!
//! Of a directory all bricks are told that have it, and the ranges of hashes of all that should:
//!
//! ```text
//! ((<DISTRIBUTE:vol-dht> <POSIX(/b1):h1:/b1/dir> <POSIX(/b2):h2:/b2/dir>) (vol-dht-layout (vol-client-0 0 99) (vol-client-1 100 199)))
//! ```

use std::os::fd::BorrowedFd;

use haul_model::layout::{Component, Stripes};
use haul_model::{Layout, TargetId};
use rustix::fs;

use super::attributes::{Attributes, is_never};
use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};

/// Both spellings of the question.
const PATHINFO: [&std::ffi::CStr; 2] = [c"glusterfs.pathinfo", c"trusted.glusterfs.pathinfo"];
/// Eight bytes, the highest first.
const SHARD_BYTES: &std::ffi::CStr = c"trusted.glusterfs.shard.block-size";
/// More layers than any volume has.
const DEPTH_MAX: usize = 16;
/// More bricks than a file can lie on.
const BRICKS_MAX: usize = 1024;
/// So many ends of bricks are looked for in the path of a file.
const NAME_ENDS_MAX: usize = 32;
/// A set of bricks is named by them, as long as that is no longer than this; else by its own name.
const SET_NAME_BYTES_MAX: usize = 200;

/// Whether this file lies on a GlusterFS volume.
pub(crate) fn is_gluster(file: BorrowedFd<'_>) -> bool {
    // It is reached through FUSE; of other file systems nothing is asked.
    const FUSE_MAGIC: i128 = 0x6573_5546;
    let fuse = fs::fstatfs(file).is_ok_and(|system| i128::from(system.f_type) == FUSE_MAGIC);
    fuse && PATHINFO.into_iter().any(|name| file.get(name).is_ok())
}

/// Asks for `glusterfs.pathinfo`.
pub struct Gluster;

impl LayoutSource for Gluster {
    fn kind(&self) -> Kind {
        Kind::Gluster
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        let mut never = true;
        for name in PATHINFO {
            match file.attributes.get(name) {
                Ok(value) => {
                    let found = parse(&value).and_then(|volume| layout(&volume, file, targets));
                    return found.map_or(Answer::Unknown, Answer::Found);
                }
                Err(errno) => never &= is_never(errno),
            }
        }
        if never { Answer::Never } else { Answer::Unknown }
    }

    /// A volume that distributes files leaves those out of a listing that are on bricks which are down, and says nothing
    /// of it.
    fn hides_names(&self, directory: &Subject<'_>) -> Option<bool> {
        let value = PATHINFO.into_iter().find_map(|name| directory.attributes.get(name).ok())?;
        match understood(&value, |parser| parser.directory()) {
            Some((told, wanted)) => Some(told < wanted),
            None => parse(&value).map(|_| false),
        }
    }
}

fn layout(volume: &Node, file: &Subject<'_>, targets: &Targets) -> Option<Layout> {
    let domain = Domain::Device(file.file_system.device);
    let layout = match volume.without_distribution()? {
        Node::Group { kind: Group::Stripe(size), members, .. } => {
            let ids = members
                .iter()
                .map(|member| Some(targets.id(domain, &member.without_distribution()?.name()?)));
            Layout::whole(Stripes::round_robin(*size, ids.collect::<Option<Vec<TargetId>>>()?)?)
        }
        other => Layout::single(targets.id(domain, &other.name()?)),
    };
    let Some(first_shard) = shard_bytes(file) else { return Some(layout) };
    let shards = targets.id(domain, &format!("{} shards", file.file_system.mount.source));
    let first = layout.components().first()?.stripes.clone();
    Layout::new(vec![
        Component { range: 0..first_shard, stripes: first },
        Component { range: first_shard..u64::MAX, stripes: Some(Stripes::one(shards)) },
    ])
}

fn shard_bytes(file: &Subject<'_>) -> Option<u64> {
    let value = file.attributes.get(SHARD_BYTES).ok()?;
    let bytes = u64::from_be_bytes(*value.first_chunk()?);
    (value.len() == 8 && (1..u64::MAX).contains(&bytes)).then_some(bytes)
}

/// What layers do with what is below them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    /// Each file is on one of the members; those that are told hold it.
    Distribute,
    /// All members work together.
    Together,
    /// Members get so many bytes each in turn.
    Stripe(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    /// `host:/brick`
    Brick(String),
    Group {
        kind: Group,
        name: String,
        members: Vec<Node>,
    },
}

impl Node {
    /// A file is on exactly one member; a directory, on all, has no layout.
    fn without_distribution(&self) -> Option<&Node> {
        let mut node = self;
        while let Node::Group { kind: Group::Distribute, members, .. } = node {
            let [member] = &**members else { return None };
            node = member;
        }
        Some(node)
    }

    /// `h1:/b1+h2:/b2` of what works together, whichever of them answered first.
    fn name(&self) -> Option<String> {
        let (name, members) = match self {
            Node::Brick(name) => return Some(name.clone()),
            Node::Group { kind: Group::Together, name, members } => (name, members),
            Node::Group { .. } => return None,
        };
        let mut bricks = members.iter().map(Node::name).collect::<Option<Vec<_>>>()?;
        bricks.sort_unstable();
        let bricks = bricks.join("+");
        match bricks.is_empty() {
            true => None,
            false if bricks.len() > SET_NAME_BYTES_MAX => Some(name.clone()),
            false => Some(bricks),
        }
    }
}

fn parse(value: &[u8]) -> Option<Node> {
    understood(value, |parser| parser.node(0))
}

/// The name of the file is part of the text and may hold what looks like the end of a brick. All bricks tell the same
/// path below them, so it is the first end with which the whole text can be understood.
fn understood<T>(value: &[u8], read: impl Fn(&mut Parser<'_>) -> Option<T>) -> Option<T> {
    let value = value.strip_suffix(b"\0").unwrap_or(value);
    for ends_skipped in 0..NAME_ENDS_MAX {
        let mut parser = Parser { rest: value, bricks: 0, below: None, ends_skipped };
        let found = read(&mut parser);
        parser.blanks();
        if found.is_some() && parser.rest.is_empty() {
            return found;
        }
        // No brick at all, or no more ends.
        parser.below?;
        if parser.bricks > BRICKS_MAX {
            return None;
        }
    }
    None
}

struct Parser<'a> {
    rest: &'a [u8],
    bricks: usize,
    /// The path of the file below its brick, as the first brick told it.
    below: Option<&'a [u8]>,
    /// So many ends of it are taken for part of a name.
    ends_skipped: usize,
}

impl<'a> Parser<'a> {
    fn node(&mut self, depth: usize) -> Option<Node> {
        if self.takes(b"<POSIX(") {
            self.bricks += 1;
            return self.brick().filter(|_| self.bricks <= BRICKS_MAX);
        }
        if depth >= DEPTH_MAX || !self.takes(b"(<") {
            return None;
        }
        let head = self.until(b"> ")?;
        let (kind, name) = group(std::str::from_utf8(head).ok()?)?;
        let mut members = Vec::new();
        loop {
            self.blanks();
            if self.takes(b")") {
                return Some(Node::Group { kind, name: name.to_owned(), members });
            }
            members.push(self.node(depth + 1)?);
        }
    }

    /// Of a directory: how many members of the distribution are told, and how many its layout has.
    fn directory(&mut self) -> Option<(usize, usize)> {
        if !self.takes(b"(") {
            return None;
        }
        let Node::Group { kind: Group::Distribute, members, .. } = self.node(0)? else { return None };
        self.blanks();
        if !self.takes(b"(") || !self.until(b" ")?.ends_with(b"-layout") {
            return None;
        }
        let mut ranges = 0;
        while !self.takes(b")") {
            if !self.takes(b"(") {
                return None;
            }
            self.until(b")")?;
            self.blanks();
            ranges += 1;
        }
        self.takes(b")").then_some((members.len(), ranges))
    }

    /// `/brick):host:/brick/path/of/the/file>`
    fn brick(&mut self) -> Option<Node> {
        let brick = self.until(b"):")?;
        let host = self.until(b":")?;
        self.takes(brick);
        let below = match self.below {
            Some(below) => below,
            None => &self.rest[..self.end_of_name()?],
        };
        self.below = Some(below);
        let valid = self.takes(below) && self.takes(b">") && !brick.is_empty() && !host.is_empty();
        valid.then(|| {
            Node::Brick(format!("{}:{}", String::from_utf8_lossy(host), String::from_utf8_lossy(brick)))
        })
    }

    /// Where the text can go on after a name.
    fn end_of_name(&self) -> Option<usize> {
        let is_end =
            |at: &usize| self.rest[*at] == b'>' && matches!(self.rest.get(at + 1), None | Some(b' ' | b')'));
        (0..self.rest.len()).filter(is_end).nth(self.ends_skipped)
    }

    fn blanks(&mut self) {
        let end = self.rest.iter().position(|byte| *byte != b' ').unwrap_or(self.rest.len());
        self.rest = &self.rest[end..];
    }

    fn takes(&mut self, text: &[u8]) -> bool {
        let found = self.rest.strip_prefix(text);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn until(&mut self, end: &[u8]) -> Option<&'a [u8]> {
        let at = self.rest.windows(end.len()).position(|window| window == end)?;
        let found = &self.rest[..at];
        self.rest = &self.rest[at + end.len()..];
        Some(found)
    }
}

/// `REPLICATE:vol-replicate-0`, `STRIPE:vol-stripe-0:[131072]`
fn group(head: &str) -> Option<(Group, &str)> {
    let (word, name) = head.split_once(':')?;
    match word {
        "DISTRIBUTE" => Some((Group::Distribute, name)),
        "REPLICATE" | "EC" => Some((Group::Together, name)),
        "STRIPE" => {
            let (name, size) = name.rsplit_once(":[")?;
            Some((Group::Stripe(size.strip_suffix(']')?.parse().ok()?), name))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<String> {
        parse(text.as_bytes())?.without_distribution()?.name()
    }

    #[test]
    fn bricks_are_told_through_all_layers() {
        let distributed = "(<DISTRIBUTE:gv-dht> <POSIX(/run/b4/data):vm:/run/b4/data/f1>)";
        assert_eq!(name(distributed).as_deref(), Some("vm:/run/b4/data"));
        let replicated =
            "(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>))\0";
        assert_eq!(name(replicated).as_deref(), Some("h1:/b1+h2:/b2"));
        let dispersed =
            "(<EC:v-disperse-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f> <POSIX(/b3):h3:/b3/f>)";
        assert_eq!(name(dispersed).as_deref(), Some("h1:/b1+h2:/b2+h3:/b3"));
        assert_eq!(name("<POSIX(/b):h:/b/f>").as_deref(), Some("h:/b"));
        assert_eq!(name("(<DISTRIBUTE:v> <POSIX(/b):h:/b/a>b):x<POSIX(>)").as_deref(), Some("h:/b"));
    }

    #[test]
    fn a_name_that_looks_like_the_end_of_a_brick_is_no_end() {
        for below in ["a> b)>) c>", "a>)", "> > >", "a name (of> gluster) :x", "<POSIX(/b):h:/b/f"] {
            let single = format!("(<DISTRIBUTE:v> <POSIX(/b):h:/b/{below}>)");
            assert_eq!(name(&single).as_deref(), Some("h:/b"), "{single}");
            let pair = format!(
                "(<DISTRIBUTE:v> (<REPLICATE:v-0> <POSIX(/b1):h1:/b1/d/{below}> <POSIX(/b2):h2:/b2/d/{below}>))"
            );
            assert_eq!(name(&pair).as_deref(), Some("h1:/b1+h2:/b2"), "{pair}");
        }
        let many = "> ".repeat(1000);
        assert_eq!(name(&format!("(<DISTRIBUTE:v> <POSIX(/b):h:/b/{many}>)")), None, "within bounds");
        // Two readings of the text: it does not say which one is right.
        assert_eq!(name("(<DISTRIBUTE:v> <POSIX(/b):h:/b/a> <POSIX(/x):y:/x/a>)"), None);
    }

    /// What GlusterFS 10.3 said, word for word: of a file, of one with an odd name, of their directory.
    const RECORDED: &[(&str, &str)] = &[
        (
            "(<DISTRIBUTE:plain-dht> <POSIX(/dev/shm/s/d3/plain):vm:/dev/shm/s/d3/plain/data/d/f1>) \0",
            "vm:/dev/shm/s/d3/plain",
        ),
        (
            "(<DISTRIBUTE:plain-dht> <POSIX(/dev/shm/s/d3/plain):vm:/dev/shm/s/d3/plain/data/a name (of> gluster) :x>) \0",
            "vm:/dev/shm/s/d3/plain",
        ),
        (
            "(<DISTRIBUTE:rep-dht> (<REPLICATE:rep-replicate-1> <POSIX(/dev/shm/s/d3/r):vm:/dev/shm/s/d3/r/dir/file> <POSIX(/dev/shm/s/d2/r):vm:/dev/shm/s/d2/r/dir/file>)) \0",
            "vm:/dev/shm/s/d2/r+vm:/dev/shm/s/d3/r",
        ),
        (
            "(<DISTRIBUTE:rep-dht> (<REPLICATE:rep-replicate-0> <POSIX(/dev/shm/s/d1/r):vm:/dev/shm/s/d1/r/dir/a> b)>) c>> <POSIX(/dev/shm/s/d0/r):vm:/dev/shm/s/d0/r/dir/a> b)>) c>>)) \0",
            "vm:/dev/shm/s/d0/r+vm:/dev/shm/s/d1/r",
        ),
        (
            "(<REPLICATE:arb-replicate-0> <POSIX(/dev/shm/s/d2/a):vm:/dev/shm/s/d2/a/dir/file> <POSIX(/dev/shm/s/d1/a):vm:/dev/shm/s/d1/a/dir/file> <POSIX(/dev/shm/s/d0/a):vm:/dev/shm/s/d0/a/dir/file>) \0",
            "vm:/dev/shm/s/d0/a+vm:/dev/shm/s/d1/a+vm:/dev/shm/s/d2/a",
        ),
        ("<POSIX(/dev/shm/s/d0/s):vm:/dev/shm/s/d0/s/dir/a> b)>) c>> \0", "vm:/dev/shm/s/d0/s"),
    ];

    #[test]
    fn what_was_recorded_is_understood() {
        for (text, expected) in RECORDED {
            assert_eq!(name(text).as_deref(), Some(*expected), "{text}");
        }
    }

    #[test]
    fn the_order_in_which_bricks_answered_makes_no_other_target() {
        let told = |order: [u8; 3]| {
            let bricks = order.map(|brick| format!("<POSIX(/b{brick}):h:/b{brick}/f>")).join(" ");
            name(&format!("(<REPLICATE:v-replicate-0> {bricks})")).unwrap()
        };
        assert_eq!(told([3, 1, 2]), told([1, 2, 3]));
    }

    struct Told<'a>(&'a str);

    impl super::super::Attributes for Told<'_> {
        fn get(&self, name: &std::ffi::CStr) -> rustix::io::Result<Vec<u8>> {
            let told = name == c"glusterfs.pathinfo";
            if told { Ok(self.0.as_bytes().to_vec()) } else { Err(rustix::io::Errno::NODATA) }
        }
    }

    fn hides_names(text: &str) -> Option<bool> {
        let mount = super::super::Mount { source: "vm:v".into(), point: "/v".into() };
        let file_system = super::super::FileSystem { device: 1, magic: 0, mount, btrfs: None };
        let subject =
            Subject { file_system: &file_system, attributes: &Told(text), path: None, known: false };
        Gluster.hides_names(&subject)
    }

    #[test]
    fn a_directory_that_some_bricks_do_not_tell_of_hides_names() {
        let whole = "((<DISTRIBUTE:p-dht> <POSIX(/s/d2/p):vm:/s/d2/p/data/d> <POSIX(/s/d3/p):vm:/s/d3/p/data/d> <POSIX(/s/d1/p):vm:/s/d1/p/data/d> <POSIX(/s/d0/p):vm:/s/d0/p/data/d>) (p-dht-layout (p-client-1 0 1073741822) (p-client-2 1073741823 2147483645) (p-client-3 2147483646 3221225468) (p-client-0 3221225469 4294967295))) \0";
        assert_eq!(hides_names(whole), Some(false));
        let one_down = whole.replace(" <POSIX(/s/d1/p):vm:/s/d1/p/data/d>", "");
        assert_eq!(hides_names(&one_down), Some(true));
        // A client that was mounted when the brick was down already knows of no range of it.
        let since_before = one_down.replace("(p-client-1 0 1073741822)", "(p-client-1 0 0)");
        assert_eq!(hides_names(&since_before), Some(true));
        let replicated = "((<DISTRIBUTE:rep-dht> (<REPLICATE:rep-replicate-0> <POSIX(/s/d0/r):vm:/s/d0/r/dir> <POSIX(/s/d1/r):vm:/s/d1/r/dir>) (<REPLICATE:rep-replicate-1> <POSIX(/s/d3/r):vm:/s/d3/r/dir> <POSIX(/s/d2/r):vm:/s/d2/r/dir>)) (rep-dht-layout (rep-replicate-0 0 2147483646) (rep-replicate-1 2147483647 4294967295))) \0";
        assert_eq!(hides_names(replicated), Some(false));
        let half_a_set = replicated.replace(" <POSIX(/s/d1/r):vm:/s/d1/r/dir>", "");
        assert_eq!(hides_names(&half_a_set), Some(false), "the other half has the same names");
        assert_eq!(hides_names("<POSIX(/s/d0/s):vm:/s/d0/s/dir> \0"), Some(false));
        for text in [
            "",
            "x",
            "((",
            "((<DISTRIBUTE:v> <POSIX(/b):h:/b/d>) (v-layout (a 0 1",
            "((<DISTRIBUTE:v> <POSIX(/b):h:/b/d>) x)",
        ] {
            assert_eq!(hides_names(text), None, "{text}");
        }
    }

    #[test]
    fn a_set_of_many_bricks_has_its_own_name() {
        let bricks: String =
            (0..12).map(|n| format!(" <POSIX(/a/long/path/of/a/brick{n}):host{n}:/f>")).collect();
        assert_eq!(name(&format!("(<EC:v-disperse-3> {bricks})")).as_deref(), Some("v-disperse-3"));
    }

    #[test]
    fn what_is_no_file_on_bricks_is_unknown() {
        let deep = "(<DISTRIBUTE:v> ".repeat(1000);
        for text in [
            "",
            "x",
            "(",
            "(<DISTRIBUTE:v> )",
            "(<DISTRIBUTE:v> <POSIX(/b):h:/b/f>",
            "(<DISTRIBUTE:v> <POSIX(/b):h:/b/f>) more",
            "(<DISTRIBUTE:v> <POSIX(/1):h:/d> <POSIX(/2):h:/d>)",
            "((<DISTRIBUTE:v> <POSIX(/1):h:/d>) (v-layout (v-client-0 0 4294967295)))",
            "(<NEW:v> <POSIX(/b):h:/b/f>)",
            "(<STRIPE:v:[x]> <POSIX(/b):h:/b/f>)",
            "<POSIX():h:/b/f>",
            "<POSIX(/b)::/b/f>",
            &deep,
        ] {
            assert_eq!(name(text), None, "{text}");
        }
        let many = format!("(<EC:v> {})", "<POSIX(/b):h:/f> ".repeat(BRICKS_MAX + 1));
        assert_eq!(name(&many), None);
    }
}
