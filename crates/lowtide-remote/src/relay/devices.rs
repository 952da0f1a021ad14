//! The run's pages on the server, as far as known without asking: by device, and by cluster of
//! slots.

use super::locked;
use crate::keys::RunName;
use lowtide_core::device::wire::{Hello, Run};
use lowtide_core::slot::CLUSTER_SLOTS;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

const SLOTS: u64 = CLUSTER_SLOTS as u64;

pub struct Devices {
    run: RunName,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// By their processes' number, with the count of channels.
    known: HashMap<u64, (Arc<Device>, usize)>,
    /// Devices so far.
    count: u64,
}

/// Pages of one process and its forked children.
pub struct Device {
    pub prefix: String,
    token: u64,
    /// Clusters with possible pages, and whether their removal is running.
    clusters: Mutex<BTreeMap<u64, bool>>,
}

impl Devices {
    pub fn new(run: RunName) -> Devices {
        Devices { run, list: Mutex::default() }
    }

    /// Opens a channel of a device.
    ///
    /// # Errors
    /// `NOENT`: it is gone, with its pages. `EXIST`: it is not new.
    pub fn open(&self, hello: Hello) -> Result<Arc<Device>, Errno> {
        let mut list = locked(&self.list);
        if let Some((device, channels)) = list.known.get_mut(&hello.token) {
            if !hello.again {
                return Err(Errno::EXIST);
            }
            *channels += 1;
            return Ok(device.clone());
        }
        if hello.again {
            return Err(Errno::NOENT);
        }
        list.count += 1;
        let device = Device { prefix: self.run.device(list.count), token: hello.token, clusters: Mutex::default() };
        let device = Arc::new(device);
        list.known.insert(hello.token, (device.clone(), 1));
        Ok(device)
    }

    /// Returns the device after its last channel: its pages are unreadable now.
    pub fn close(&self, device: &Device) -> Option<Arc<Device>> {
        let mut list = locked(&self.list);
        let (_, channels) = list.known.get_mut(&device.token)?;
        *channels -= 1;
        if *channels > 0 { None } else { list.known.remove(&device.token).map(|(device, _)| device) }
    }

    /// No process uses them any more.
    pub fn take_all(&self) -> Vec<Arc<Device>> {
        locked(&self.list).known.drain().map(|(_, (device, _))| device).collect()
    }
}

impl Device {
    /// Call it before writing pages.
    pub fn will_have(&self, runs: &[Run]) {
        let mut clusters = locked(&self.clusters);
        for run in runs.iter().filter(|run| run.pages > 0) {
            let written = run.slot / SLOTS..=(run.slot + u64::from(run.pages) - 1) / SLOTS;
            clusters.extend(written.map(|cluster| (cluster, false)));
        }
    }

    /// Call it before removing slots.
    pub fn will_not_have(&self, runs: &[Run]) {
        let mut clusters = locked(&self.clusters);
        runs.iter().flat_map(whole).for_each(|cluster| _ = clusters.get_mut(&cluster).map(|is_going| *is_going = true));
    }

    /// Call it after removing slots.
    pub fn has_not(&self, run: &Run) {
        let mut clusters = locked(&self.clusters);
        whole(run).for_each(|cluster| _ = clusters.remove(&cluster));
    }

    /// Whether a slot's cluster is to keep its pages.
    pub fn keeps(&self, slot: u64) -> bool {
        locked(&self.clusters).get(&(slot / SLOTS)) == Some(&false)
    }

    pub fn runs(&self) -> Vec<Run> {
        locked(&self.clusters).keys().map(|cluster| Run { slot: cluster * SLOTS, pages: SLOTS as u32 }).collect()
    }
}

/// The clusters that a run covers.
fn whole(run: &Run) -> std::ops::Range<u64> {
    run.slot.div_ceil(SLOTS)..(run.slot + u64::from(run.pages)) / SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_gone_with_its_last_channel() {
        let devices = Devices::new(RunName(1));
        let (new, again) = (Hello { token: 5, again: false }, Hello { token: 5, again: true });
        assert_eq!(devices.open(again).err(), Some(Errno::NOENT));
        let device = devices.open(new).unwrap();
        assert_eq!(devices.open(new).err(), Some(Errno::EXIST));
        assert!(Arc::ptr_eq(&device, &devices.open(again).unwrap()));
        let other = devices.open(Hello { token: 6, again: false }).unwrap();
        assert_ne!(device.prefix, other.prefix);
        assert!(devices.close(&device).is_none());
        assert!(devices.close(&device).is_some_and(|gone| Arc::ptr_eq(&gone, &device)));
        assert_eq!(devices.open(again).err(), Some(Errno::NOENT), "its pages are being removed");
        assert!(devices.take_all().len() == 1 && devices.close(&other).is_none());
    }

    #[test]
    fn what_may_be_there_is_known_by_clusters() {
        let device = Device { prefix: String::new(), token: 0, clusters: Mutex::default() };
        let run = |slot, pages| Run { slot, pages };
        device.will_have(&[run(1, 1), run(1020, 8), run(5, 0)]);
        assert_eq!(device.runs(), [run(0, 512), run(512, 512), run(1024, 512)]);
        assert!(device.keeps(511) && device.keeps(512) && !device.keeps(1536), "nothing was written there");
        device.will_not_have(&[run(0, 1000)]);
        assert!(!device.keeps(511) && device.keeps(512), "of the second one some stay");
        assert_eq!(device.runs().len(), 3, "they are there still");
        device.will_have(&[run(3, 1)]);
        assert!(device.keeps(511), "it is written anew");
        device.has_not(&run(512, 512));
        device.has_not(&run(1024, 511));
        device.has_not(&run(1, 511));
        assert_eq!(device.runs(), [run(0, 512), run(1024, 512)]);
    }
}
