//! Thin path.
use lowtide_region::*;

#[test]
fn thin() {
    for delivery in [Delivery::InThread, Delivery::UserMonitor, Delivery::Monitor] {
        let mut region = Region::builder(64 << 20).ram(16 << 20).swap(Swap::Ram).delivery(delivery).build().unwrap();
        for (i, chunk) in region.as_mut_slice().chunks_mut(4096).enumerate() {
            chunk[..8].copy_from_slice(&i.to_le_bytes());
        }
        assert!(region.as_slice().chunks(4096).enumerate().all(|(i, chunk)| chunk[..8] == i.to_le_bytes()));
        let stats = region.stats().unwrap();
        println!("{stats:?}");
        assert!(stats.ram_now <= stats.ram_limit && stats.pages_out > 0);
        region.evict(..).unwrap();
        println!("{:?}", region.stats());
        region.drop_range(..).unwrap();
        println!("{:?}", region.stats());
        assert!(region.as_slice().iter().all(|b| *b == 0));
    }
}
