use super::*;
use rustix::fs::Mode;
use std::vec::Vec;

fn device(dir: &std::path::Path) -> FileDevice {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    FileDevice::new(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).unwrap(), DeviceName::default()).unwrap()
}

fn pages(n: u32) -> Vec<Page> {
    (0..n).map(|i| core::array::from_fn(|k| (k as u32 ^ i.wrapping_mul(77)) as u8)).collect()
}

fn write(d: &FileDevice, slot: u64, pages: &[Page]) -> (Result<(), Errno>, Vec<Tag>) {
    let refs: Vec<&Page> = pages.iter().collect();
    let mut tags = std::vec![0; pages.len()];
    let mut run = [WriteRun { slot, pages: &refs, tags: &mut tags, result: Ok(()) }];
    d.write_runs(&mut run);
    (run[0].result, tags)
}

/// Reads to page-aligned memory, or one byte beside it, and opens.
fn read(d: &FileDevice, slot: u64, tags: &[Tag], skew: usize) -> Result<Vec<Page>, Errno> {
    let n = tags.len();
    let mut bytes = std::vec![0u8; (n + 2) * PAGE_SIZE];
    let at = bytes.as_ptr().align_offset(PAGE_SIZE) + skew;
    let (into, _) = bytes[at..at + n * PAGE_SIZE].as_chunks_mut::<PAGE_SIZE>();
    let mut run = [ReadRun { slot, into, result: Ok(()) }];
    d.read_runs(&mut run);
    run[0].result?;
    assert!(run[0].into.iter_mut().zip(tags).zip(slot..).all(|((page, tag), slot)| d.open(slot, *tag, page)));
    Ok(run[0].into.to_vec())
}

#[test]
fn runs_longer_than_all_buffers_and_the_end_of_the_file() {
    // O_DIRECT if the first directory is on a disk; none on tmpfs.
    for dir in ["/var/tmp", "/dev/shm"].map(std::path::Path::new).into_iter().filter(|dir| dir.is_dir()) {
        let d = device(dir);
        let pages = pages(600);
        let (result, tags) = write(&d, 7, &pages);
        result.unwrap();
        for skew in [0, 1] {
            assert!(read(&d, 7, &tags, skew).unwrap() == pages);
            assert_eq!(read(&d, 8, &tags, skew), Err(Errno::IO), "the last slot was never written");
        }
        d.replace(None);
        assert_eq!(read(&d, 7, &tags, 0), Err(Errno::BADF));
        assert_eq!(write(&d, 7, &pages).0, Err(Errno::BADF));
    }
}

#[test]
fn nothing_is_written_to_find_out_about_o_direct_where_the_kernel_tells() {
    // ext4 and xfs tell, others may not; tmpfs may do either.
    for dir in ["/var/tmp", "/dev/shm"].map(std::path::Path::new).into_iter().filter(|dir| dir.is_dir()) {
        let d = device(dir);
        let file = d.file().unwrap().fd;
        let told = takes_direct(&file.try_clone_to_owned().unwrap());
        let is_empty = rustix::fs::fstat(file).unwrap().st_size == 0;
        match told {
            Some(direct) => assert!(is_empty && direct == d.is_direct(), "{dir:?}: {told:?}"),
            None => assert!(is_empty != d.is_direct(), "{dir:?}: it was tried"),
        }
    }
}

#[test]
fn only_files_without_a_name_are_lengthened() {
    let dir = std::env::temp_dir();
    let path = dir.join(std::format!("named-{}", std::process::id()));
    let named = FileDevice::new(std::fs::File::create_new(&path).unwrap().into(), DeviceName::default()).unwrap();
    for (d, longer) in [(device(&dir), true), (named, false)] {
        let stat = || rustix::fs::fstat(d.file().unwrap().fd).unwrap();
        let before = stat().st_size;
        d.lengthen(1 << 20);
        assert_eq!((stat().st_size == 1 << 20, stat().st_size == before), (longer, !longer));
        d.lengthen(1 << 19);
        assert_eq!(stat().st_size == 1 << 20, longer, "never shortened");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn many_short_runs_at_once_each_with_its_own_result() {
    let d = device(&std::env::temp_dir());
    let pages = pages(100);
    let refs: Vec<&Page> = pages.iter().collect();
    let mut tags = std::vec![0; 100];
    let slot = |i: usize| if i == 30 { i64::MAX as u64 / 4096 } else { 10 * i as u64 + 1 };
    let mut runs: Vec<WriteRun<'_>> = refs
        .chunks(2)
        .zip(tags.chunks_mut(2))
        .enumerate()
        .map(|(i, (pages, tags))| WriteRun { slot: slot(i), pages, tags, result: Err(Errno::PERM) })
        .collect();
    d.write_runs(&mut runs);
    for (i, run) in runs.iter().enumerate() {
        assert_eq!(run.result.is_ok(), i != 30, "run {i}: {:?}", run.result);
    }
    for (i, tags) in tags.chunks(2).enumerate().filter(|(i, _)| *i != 30) {
        assert!(read(&d, slot(i), tags, 0).unwrap() == pages[2 * i..2 * i + 2]);
    }
}

#[test]
fn threads_share_the_rings_and_the_buffers() {
    let d = device(&std::env::temp_dir());
    assert!(d.has_rings().is_ok() || matches!(d.has_rings(), Err(Errno::PERM | Errno::NOSYS)), "{:?}", d.has_rings());
    let pages = pages(192);
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let (d, pages) = (&d, &pages);
            scope.spawn(move || {
                for round in 0..8 {
                    let first = 1 + 1000 * t + 100 * (round % 2);
                    let (result, tags) = write(d, first, pages);
                    result.unwrap();
                    let mut into: Vec<AlignedPages> = std::vec![AlignedPages([[0; PAGE_SIZE]; 3]); 64];
                    let slots = (first..).step_by(3);
                    let mut runs: Vec<ReadRun<'_>> = into
                        .iter_mut()
                        .zip(slots)
                        .map(|(pages, slot)| ReadRun { slot, into: &mut pages.0, result: Err(Errno::PERM) })
                        .collect();
                    d.read_runs(&mut runs);
                    for (i, run) in runs.iter_mut().enumerate() {
                        run.result.unwrap();
                        for (k, page) in run.into.iter_mut().enumerate() {
                            let at = 3 * i + k;
                            assert!(d.open(first + at as u64, tags[at], page) && *page == pages[at]);
                        }
                    }
                }
            });
        }
    });
}

#[derive(Clone)]
#[repr(align(4096))]
struct AlignedPages([Page; 3]);

#[test]
fn what_is_discarded_takes_no_space() {
    let d = device(&std::env::temp_dir());
    let (result, tags) = write(&d, 1, &pages(200));
    result.unwrap();
    let file = d.file().unwrap();
    rustix::fs::fdatasync(file.fd).unwrap();
    let blocks = || rustix::fs::fstat(file.fd).unwrap().st_blocks;
    let before = blocks();
    d.discard(0, 151).unwrap();
    assert!(blocks() <= before - 149 * 8, "{before} blocks before, {} after", blocks());
    assert!(read(&d, 151, &tags[150..], 0).is_ok(), "the others are still there");
}

#[test]
fn nothing_is_left_in_the_page_cache() {
    for dir in ["/var/tmp"].map(std::path::Path::new).into_iter().filter(|dir| dir.is_dir()) {
        let d = device(dir);
        assert_eq!(write(&d, 1, &pages(512)).0, Ok(()));
        if d.is_direct() {
            let file = d.file().unwrap();
            // A mapping shows what is cached.
            let len = 513 * PAGE_SIZE;
            // SAFETY: a new mapping of this test's; mincore only reads it.
            let cached = unsafe {
                let prot = rustix::mm::ProtFlags::READ;
                let at = rustix::mm::mmap(core::ptr::null_mut(), len, prot, rustix::mm::MapFlags::SHARED, file.fd, 0).unwrap();
                let mut seen = std::vec![0u8; 513];
                unsafe extern "C" {
                    fn mincore(at: *mut core::ffi::c_void, len: usize, seen: *mut u8) -> i32;
                }
                assert_eq!(mincore(at, len, seen.as_mut_ptr()), 0);
                rustix::mm::munmap(at, len).unwrap();
                seen.iter().filter(|s| **s & 1 != 0).count()
            };
            assert_eq!(cached, 0);
        }
    }
}
