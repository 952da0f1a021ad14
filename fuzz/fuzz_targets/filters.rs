//! Any page through each filter and codec and back; and any bytes as a compressed page, which are garbage at worst.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_core::codec::{Codec, Filter, Filters, Workspace};
use lowtide_core::vm::PAGE_SIZE;

fuzz_target!(|data: &[u8]| {
    if data.is_empty() {
        return;
    }
    let mut workspace = Workspace::new().expect("no memory");
    let mut page = [0; PAGE_SIZE];
    page.iter_mut().zip(data.iter().cycle()).for_each(|(to, from)| *to = *from);
    let mut back = [0; PAGE_SIZE];
    let mut filters = Filters::default();
    for codec in [Codec::Lz4, Codec::Zstd(-1), Codec::Zstd(2)] {
        for filter in Filter::ALL {
            if let Some(len) = codec.compress_filtered(filter, &page, &mut workspace) {
                assert!(codec.decompress_filtered(filter, &mut workspace, len, &mut back) && back == page, "{codec:?} {filter:?}");
            }
            let len = data.len().min(PAGE_SIZE);
            workspace.bytes[..len].copy_from_slice(&data[..len]);
            let _ = codec.decompress_filtered(filter, &mut workspace, len, &mut back);
        }
        for _ in 0..20 {
            if let Some(packed) = codec.compress_best(&page, &mut filters, &mut workspace) {
                let is_right = codec.decompress_filtered(packed.filter, &mut workspace, packed.len, &mut back);
                assert!(is_right && back == page, "{codec:?} {packed:?}");
            }
        }
    }
});
