//! Any sequence of insertions, loads, frees and steps of compaction on a pool, against plain copies of the objects.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use lowtide_core::pool::{Handle, MAX_COMPRESSED, Pool, Relocated, Stale};
use lowtide_core::vm::PAGE_SIZE;

/// Frames of the largest limit.
const MOST: usize = 96;

/// One call of the pool, or several of one kind.
#[derive(Arbitrary, Debug)]
enum Op {
    /// Up to 16 objects of one length: from none to one byte too many.
    Insert {
        len: u16,
        times: u8,
    },
    /// Of the length of what is there: it may get a place that was freed.
    InsertAlike {
        which: u8,
    },
    Free {
        which: u8,
    },
    /// Every so many.
    FreeMany {
        each: u8,
        from: u8,
    },
    /// The handle with some of its bits changed, or any.
    Stale {
        which: u8,
        flip: u64,
        any: bool,
    },
    /// Into a buffer that is too short.
    LoadShort {
        which: u8,
    },
    Isolate,
    /// At most so many objects of isolated spans move; of each `refuse`, one has changed hands meanwhile.
    Relocate {
        most: u8,
        refuse: u8,
    },
    LetGo,
    /// A pass as stores make it.
    Compact,
    Limit {
        frames: u8,
    },
    Drain,
}

#[derive(Arbitrary, Debug)]
struct Case {
    limit: u8,
    ops: Vec<Op>,
}

struct World {
    pool: Pool,
    objects: Vec<(Vec<u8>, Handle)>,
    /// A pass of compaction is under way.
    compacting: bool,
    seed: usize,
}

impl World {
    fn new(limit: u8) -> World {
        let pool = Pool::new((usize::from(limit) % MOST + 1) * PAGE_SIZE, MOST * PAGE_SIZE, 90).unwrap();
        World { pool, objects: vec![], compacting: false, seed: 0 }
    }

    fn pick(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.objects.len())
    }

    fn insert(&mut self, len: usize) {
        self.seed += 1;
        let data: Vec<u8> = (0..len).map(|i| (self.seed * 31 + i * 7 + i / 256) as u8).collect();
        let Some(handle) = self.pool.insert(&data) else {
            assert!(
                len == 0 || len > PAGE_SIZE || self.pool.bytes() + PAGE_SIZE > self.pool.limit(),
                "refused with room to grow"
            );
            return;
        };
        assert!((1..=PAGE_SIZE).contains(&len) && handle.object_len() == len);
        assert!(!self.pool.is_isolated(handle), "put where spans are being emptied");
        assert!(self.objects.iter().all(|(_, other)| *other != handle), "a handle was given out twice");
        assert!(self.pool.bytes() <= self.pool.limit().max(PAGE_SIZE * MOST));
        self.objects.push((data, handle));
    }

    fn free(&mut self, i: usize) {
        let (_, handle) = self.objects.swap_remove(i);
        assert_eq!(self.pool.remove(handle), Ok(()));
        assert_eq!((self.pool.remove(handle), self.pool.read(handle, &mut [0; PAGE_SIZE])), (Err(Stale), Err(Stale)));
    }

    fn relocate(&mut self, most: usize, refuse: u8) {
        let before = self.pool.bytes();
        for (i, (_, handle)) in self.objects.iter_mut().filter(|(_, h)| self.pool.is_isolated(*h)).take(most).enumerate() {
            let old = *handle;
            let agrees = i.checked_rem(refuse.into()) != Some(0);
            let moved = self.pool.relocate(old, &mut |new| {
                if agrees {
                    *handle = new;
                }
                agrees
            });
            assert!(moved == Relocated::NoRoom || (moved == Relocated::Yes) == agrees);
            assert_eq!(moved == Relocated::Yes, *handle != old);
            assert!(moved != Relocated::Yes || self.pool.read(old, &mut [0; PAGE_SIZE]) == Err(Stale));
        }
        assert_eq!(self.pool.bytes(), before, "compaction grew the pool");
    }

    fn isolate(&mut self) {
        if !self.compacting {
            self.compacting = self.pool.isolate() > 0;
        }
    }

    fn let_go(&mut self) {
        let before = self.pool.bytes();
        self.pool.let_go();
        self.compacting = false;
        assert!(self.pool.bytes() <= before);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert { len, times } => (0..times % 16 + 1).for_each(|_| self.insert(usize::from(len) % (PAGE_SIZE + 2))),
            Op::InsertAlike { which } => {
                if let Some(i) = self.pick(which) {
                    self.insert(self.objects[i].0.len());
                }
            }
            Op::Free { which } => {
                if let Some(i) = self.pick(which) {
                    self.free(i);
                }
            }
            Op::FreeMany { each, from } => {
                // From the end: what is freed is replaced by the last.
                let chosen = (usize::from(from)..self.objects.len()).step_by(usize::from(each).max(2));
                chosen.rev().for_each(|i| self.free(i));
            }
            Op::Stale { which, flip, any } => {
                let near = self.pick(which).filter(|_| !any).map_or(0, |i| self.objects[i].1.raw());
                let handle = Handle::from_raw(near ^ flip);
                // The length of a raw page stands in its handle only, so that another one cannot be told from it.
                let raw = |h: Handle| h.object_len() > MAX_COMPRESSED;
                let names = |h: Handle| h == handle || h.raw() >> 12 == handle.raw() >> 12 && raw(h) && raw(handle);
                if !self.objects.iter().any(|(_, h)| names(*h)) {
                    let moved = self.pool.relocate(handle, &mut |_| true);
                    let read = self.pool.read(handle, &mut [0; PAGE_SIZE]);
                    assert_eq!((moved, read, self.pool.remove(handle)), (Relocated::No, Err(Stale), Err(Stale)));
                }
            }
            Op::LoadShort { which } => {
                if let Some(i) = self.pick(which) {
                    let mut into = [0; PAGE_SIZE];
                    let (data, handle) = &self.objects[i];
                    assert_eq!(self.pool.read(*handle, &mut into[..data.len() - 1]), Err(Stale));
                }
            }
            Op::Isolate => self.isolate(),
            Op::Relocate { most, refuse } => self.relocate(most.into(), refuse),
            Op::LetGo => self.let_go(),
            Op::Compact => {
                self.isolate();
                self.relocate(usize::MAX, 0);
                self.let_go();
            }
            Op::Limit { frames } => self.pool.set_limit(usize::from(frames) % (MOST + 1) * PAGE_SIZE),
            Op::Drain => {
                self.pool.drain_frames();
                assert_eq!(self.pool.held_bytes(), self.pool.bytes(), "memory was not given back");
            }
        }
    }

    fn check(&self) {
        let mut into = [0; PAGE_SIZE];
        for (data, handle) in &self.objects {
            assert_eq!(self.pool.read(*handle, &mut into), Ok(data.len()));
            assert!(into[..data.len()] == data[..], "an object has other bytes");
        }
        assert_eq!(self.pool.objects(), self.objects.len());
        assert_eq!(self.pool.stored_bytes(), self.objects.iter().map(|o| o.0.len()).sum::<usize>());
        if !self.compacting {
            self.pool.validate().unwrap();
        }
    }
}

fn run(case: Case) {
    let mut world = World::new(case.limit);
    for op in &case.ops {
        world.apply(op);
        world.check();
    }
    world.let_go();
    while let Some(last) = world.objects.len().checked_sub(1) {
        world.free(last);
    }
    world.check();
    world.apply(&Op::Drain);
    assert_eq!((world.pool.bytes(), world.pool.held_bytes()), (0, 0));
}

fuzz_target!(|case: Case| run(case));
