//! Checks, before moving any page, that the pages of a swap area have room elsewhere.

use super::Live;
use super::areas::{Area, Areas, State};
use super::evacuation;
use crate::swap::area::{Swap, Where};
use lowtide_config::size;
use lowtide_wire::Watermarks;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

/// The error says how much room is missing.
pub fn check(run: &Live<'_>, place: usize, spec: &str) -> Result<(), String> {
    let need = evacuation::used(run.shared.segment(), place);
    let room = room_in_ram(run.limits.ram(), run.tree.now().ram).saturating_add(room_in_areas(run, place));
    // Other areas that are being emptied need room, too.
    let emptying = run.areas.iter().filter(|(other, area)| *other != place && area.state == State::Emptying);
    let room = room.saturating_sub(emptying.map(|(other, _)| evacuation::used(run.shared.segment(), other)).sum());
    let missing = need.saturating_sub(room);
    if missing == 0 {
        return Ok(());
    }
    let [need, room, missing] = [need, room, missing].map(mib);
    let pid = std::process::id();
    Err(format!(
        "swapoff {spec}: {need} of pages are there and there is room for {room} elsewhere: {missing} are missing; add an area \
         (`lowtide swapon {pid} SPEC`) or raise the limit (`lowtide limit {pid} SIZE`)"
    ))
}

/// In MiB, unless that is 0.
fn mib(bytes: u64) -> String {
    match bytes >> 20 {
        0 => size::show(bytes),
        mib => format!("{mib} MiB"),
    }
}

/// Room up to the level where background eviction begins.
fn room_in_ram(limit: u64, now: u64) -> u64 {
    Watermarks::of(limit).low().saturating_sub(now)
}

/// Free slots in files, and possible growth of the files.
fn room_in_areas(run: &Live<'_>, leaving: usize) -> u64 {
    // Areas on one file system share its free space.
    let mut free_on: HashMap<u64, u64> = HashMap::new();
    let mut room = 0u64;
    for (place, area) in run.areas.on().filter(|(place, _)| *place != leaving) {
        let segment = run.shared.segment();
        let charged = segment.areas[place].used.load(Ordering::Relaxed);
        let free_slots = charged.saturating_sub(evacuation::used(segment, place));
        let growth = area.size.saturating_sub(charged);
        room = room.saturating_add(free_slots).saturating_add(grown(area, growth, charged, &mut free_on));
    }
    room
}

/// Real growth of an area's files, up to `growth`.
fn grown(area: &Area, growth: u64, charged: u64, free_on: &mut HashMap<u64, u64>) -> u64 {
    let Some(swap) = Areas::swap(area) else { return 0 };
    let Some((device, free)) = space(swap) else { return growth };
    let free = free_on.entry(device).or_insert(free);
    // A named file's allocated space needs no free space.
    let has = allocated(swap).saturating_sub(charged).min(growth);
    let more = (growth - has).min(*free);
    *free -= more;
    has + more
}

/// The file system and its free space. None: the area can grow to its full size, or it is unknown.
fn space(swap: &Swap) -> Option<(u64, u64)> {
    let path = match &swap.place {
        Where::Dir(dir) => dir,
        Where::File(file) if file.is_device => return None,
        Where::File(file) => &file.path,
        Where::Remote(_) => return None,
    };
    let space = rustix::fs::statvfs(path).ok()?;
    Some((path.metadata().ok()?.dev(), space.f_bavail.saturating_mul(space.f_frsize)))
}

fn allocated(swap: &Swap) -> u64 {
    match &swap.place {
        Where::File(file) if !file.is_device => file.file.metadata().map_or(0, |data| data.blocks() * 512),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_in_ram_ends_where_eviction_begins() {
        // A twentieth below a limit of 100 MiB, and no more than 48 MiB below a large one.
        assert_eq!([90, 99].map(|now| room_in_ram(100 << 20, now << 20) >> 20), [5, 0]);
        assert_eq!(room_in_ram(32 << 30, 31 << 30) >> 20, 1024 - 48);
    }

    #[test]
    fn small_amounts_are_not_shown_as_nothing() {
        assert_eq!(mib(812 << 20), "812 MiB");
        assert_eq!(mib(4096), "4 KiB");
    }
}
