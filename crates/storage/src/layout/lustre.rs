//! Lustre, and what answers like it: the attribute `lustre.lov` of a file, without any library of Lustre.

use haul_model::layout::{Component, Stripes};
use haul_model::{Layout, TargetId};
use rustix::io::Errno;

use super::attributes::is_never;
use super::lov::{self, Lov, LovComponent};
use super::stripe::{Plan, Where};
use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};

/// The attribute, to read and to set.
pub(super) const ATTRIBUTE: &std::ffi::CStr = c"lustre.lov";

/// Asks for `lustre.lov`.
pub struct Lustre;

impl LayoutSource for Lustre {
    fn kind(&self) -> Kind {
        Kind::Lustre
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        match file.attributes.get(ATTRIBUTE) {
            Ok(value) => {
                let layout =
                    lov::decode(&value).and_then(|lov| layout(&lov, file.file_system.device, targets));
                layout.map_or(Answer::Unknown, Answer::Found)
            }
            // A file that nobody has written to.
            Err(Errno::NODATA) if file.known => Answer::Found(Layout::none()),
            Err(errno) if is_never(errno) => Answer::Never,
            Err(_) => Answer::Unknown,
        }
    }

    fn plan(&self, thing: &Subject<'_>) -> Option<Plan> {
        lov::decode(&thing.attributes.get(ATTRIBUTE).ok()?)?.plan()
    }
}

fn layout(lov: &Lov, device: u64, targets: &Targets) -> Option<Layout> {
    let domain = Domain::Device(device);
    let stripes = |component: &LovComponent| match component.place {
        // Which one of several metadata servers the attribute does not tell.
        Where::Metadata => Some(Some(Stripes::one(targets.id(domain, "MDT0000")))),
        _ if component.released => Some(Some(Stripes::one(TargetId::ARCHIVE))),
        _ if component.targets.is_empty() => Some(None),
        _ => {
            let ids = component.targets.iter().map(|index| targets.id(domain, &format!("OST{index:04x}")));
            Stripes::round_robin(u64::from(component.stripe_size), ids.collect()).map(Some)
        }
    };
    let components = lov.components.iter().map(|component| {
        Some(Component { range: component.start..component.end, stripes: stripes(component)? })
    });
    Layout::new(components.collect::<Option<_>>()?)
}
