//! What somebody chose for a file at the source it has at the destination too.

use std::fs;
use std::io;

use super::lov::{self, Part};
use super::{Bed, FILE_BYTES, POOL, POOL_TARGETS, STRIPE_BYTES, STRIPES, differences};

fn part(stripes: u16, stripe_bytes: u32, pool: &str) -> Part {
    Part { end: u64::MAX, stripes, stripe_bytes, pool: pool.into() }
}

fn contents(seed: u8) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at >> 9) as u8 ^ (at as u8).wrapping_mul(7) ^ seed).collect()
}

/// Three stripes of 2 MiB in a pool arrive as such, and so do parts. What the file's directory gives everybody does not
/// travel: the destination has its own.
pub fn chosen_stripes(bed: &Bed) -> io::Result<Option<String>> {
    let tree = bed.source.directory.join("tree");
    fs::create_dir(&tree)?;
    lov::set(&tree, &[part(2, 4 << 20, "")])?;
    let pooled = [part(3, 2 << 20, POOL)];
    let parts = [Part { end: 4 << 20, ..part(1, 1 << 20, "") }, part(4, 2 << 20, POOL)];
    lov::make(&tree.join("pooled"), &pooled, &contents(1))?;
    lov::make(&tree.join("parted"), &parts, &contents(2))?;
    fs::write(tree.join("usual"), contents(3))?;
    let one = [part(1, 1 << 20, "")];
    lov::make(&tree.join("narrow"), &one, &contents(4))?;
    // A file that is named alone is compared with its directory as well.
    let alone =
        bed.start_from(&[tree.join("pooled"), tree.join("usual")], &["--object-size", "1MiB"], &[])?;
    let alone = bed.wait(alone)?;
    let ended = bed.copy(&[])?;
    let wrong = alone.is_not(0).or_else(|| ended.is_not(0));
    if let Some(wrong) = wrong.or_else(|| differences(&bed.source, &bed.sink)) {
        return Ok(Some(wrong));
    }
    let usual = [part(STRIPES, STRIPE_BYTES, "")];
    let copies = bed.sink.directory.join("tree");
    for (path, expected) in [
        (copies.join("pooled"), &pooled[..]),
        (copies.join("parted"), &parts),
        (copies.join("usual"), &usual),
        (copies.join("narrow"), &one),
        (bed.sink.directory.join("pooled"), &pooled),
        (bed.sink.directory.join("usual"), &usual),
    ] {
        let found = lov::of(&path)?;
        if found.parts != expected {
            return Ok(Some(format!("{path:?} is striped as {:?}, not {expected:?}", found.parts)));
        }
        let outside = |part: &usize| {
            found.parts[*part].pool == POOL
                && found.targets_of(*part).iter().any(|target| !POOL_TARGETS.contains(target))
        };
        if (0..found.parts.len()).any(|part| outside(&part)) {
            return Ok(Some(format!("{path:?} is outside of its pool, on {:?}", found.targets())));
        }
    }
    let told = ended.striped_otherwise.len();
    Ok((told > 0).then(|| format!("{told} files are said to be striped otherwise")))
}

/// All but the pool is kept, and that is said once.
pub fn pool_only_at_the_source(bed: &Bed) -> io::Result<Option<String>> {
    let tree = bed.source.directory.join("tree");
    fs::create_dir(&tree)?;
    for seed in 0..3 {
        lov::make(&tree.join(format!("file-{seed}")), &[part(2, 2 << 20, "elsewhere")], &contents(seed))?;
    }
    bed.sink.control("unknown_pool=refuse");
    let ended = bed.copy(&[])?;
    if let Some(wrong) = ended.is_not(0).or_else(|| differences(&bed.source, &bed.sink)) {
        return Ok(Some(wrong));
    }
    for seed in 0..3 {
        let found = lov::of(&bed.sink.directory.join("tree").join(format!("file-{seed}")))?;
        if found.parts != [part(2, 2 << 20, "")] {
            return Ok(Some(format!("file-{seed} is striped as {:?}", found.parts)));
        }
    }
    let told: Vec<_> = ended.striped_otherwise.iter().map(|event| event["why"].as_str()).collect();
    Ok((told != [Some("no-pool")]).then(|| format!("told of other stripes: {told:?}, not once of the pool")))
}
