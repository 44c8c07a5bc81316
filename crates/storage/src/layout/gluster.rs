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
//! Bricks of a replicated or dispersed set work together on every write, so the set is one target. A volume with shards
//! tells of the first shard only. Where its block size can be read (root, on a mount that shows the internals) the rest
//! of the file is put on one target for all shards of the mount; elsewhere it cannot be told from a file that lies whole
//! on its brick.

use haul_model::layout::{Component, Stripes};
use haul_model::{Layout, TargetId};

use super::attributes::is_never;
use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};

/// Both spellings of the question.
const PATHINFO: [&std::ffi::CStr; 2] = [c"glusterfs.pathinfo", c"trusted.glusterfs.pathinfo"];
/// Eight bytes, the highest first.
const SHARD_BYTES: &std::ffi::CStr = c"trusted.glusterfs.shard.block-size";
/// More layers than any volume has.
const DEPTH_MAX: usize = 16;
/// More bricks than a file can lie on.
const BRICKS_MAX: usize = 1024;
/// A set of bricks is named by them, as long as that is no longer than this; else by its own name.
const SET_NAME_BYTES_MAX: usize = 200;

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

    /// `h1:/b1+h2:/b2` of what works together.
    fn name(&self) -> Option<String> {
        let (name, members) = match self {
            Node::Brick(name) => return Some(name.clone()),
            Node::Group { kind: Group::Together, name, members } => (name, members),
            Node::Group { .. } => return None,
        };
        let bricks = members.iter().map(Node::name).collect::<Option<Vec<_>>>()?.join("+");
        match bricks.is_empty() {
            true => None,
            false if bricks.len() > SET_NAME_BYTES_MAX => Some(name.clone()),
            false => Some(bricks),
        }
    }
}

fn parse(value: &[u8]) -> Option<Node> {
    let value = value.strip_suffix(b"\0").unwrap_or(value);
    let mut parser = Parser { rest: value, bricks: 0 };
    let node = parser.node(0)?;
    parser.blanks();
    parser.rest.is_empty().then_some(node)
}

struct Parser<'a> {
    rest: &'a [u8],
    bricks: usize,
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

    /// `/brick):host:/brick/path/of/the/file>`
    fn brick(&mut self) -> Option<Node> {
        let brick = self.until(b"):")?;
        let host = self.until(b":")?;
        // The name of the file follows, which may hold any of these bytes: the brick ends where the text can go on.
        let end = (0..self.rest.len())
            .find(|at| self.rest[*at] == b'>' && matches!(self.rest.get(at + 1), None | Some(b' ' | b')')))?;
        self.rest = &self.rest[end + 1..];
        let valid = !brick.is_empty() && !host.is_empty();
        valid.then(|| {
            Node::Brick(format!("{}:{}", String::from_utf8_lossy(host), String::from_utf8_lossy(brick)))
        })
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
        let odd = "(<DISTRIBUTE:v> <POSIX(/b):h:/b/a> b)>) c>)";
        assert_eq!(name(odd), None, "a name that looks like the end: unknown, not wrong");
        assert_eq!(name("(<DISTRIBUTE:v> <POSIX(/b):h:/b/a>b):x<POSIX(>)").as_deref(), Some("h:/b"));
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
