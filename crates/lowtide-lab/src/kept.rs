//! Pages in lowtide's store, for measuring its cost.

use std::hint::black_box;

use lowtide_core::codec::Codec;
use lowtide_core::store::{Page, Scratch, Store, StoreConfig, StoreError, Stored};

/// Pages of one call, as by the pager.
pub const RUN: usize = 128;
pub const POOL: usize = 256 << 20;

/// Pages in a store with a pool and no device.
pub struct Kept {
    pub store: Store,
    scratch: Scratch,
    kept: Vec<Result<Stored, StoreError>>,
}

impl Kept {
    pub fn new(codec: Codec) -> Result<Kept, String> {
        let store = Store::new(StoreConfig { pool_limit: POOL, accept_percent: 90, codec });
        let scratch = Scratch::new().map_err(|e| format!("no buffers: {e:?}"))?;
        Ok(Kept { store: store.map_err(|e| format!("no store: {e:?}"))?, scratch, kept: Vec::new() })
    }

    pub fn store(&mut self, pages: &[&Page]) -> Result<(), String> {
        self.kept.resize(pages.len(), Err(StoreError::Full));
        for (pages, out) in pages.chunks(RUN).zip(self.kept.chunks_mut(RUN)) {
            self.store.store_run(pages, &[], out, &mut self.scratch);
        }
        self.kept.iter().find_map(|kept| kept.err()).map_or(Ok(()), |e| Err(format!("a page can't be stored: {e:?}")))
    }

    /// Loads them all, one after the other, into the same page.
    pub fn load(&mut self, into: &mut Page) -> Result<(), String> {
        for kept in &self.kept {
            match kept {
                Ok(Stored::Entry(e)) => {
                    self.store.load(*e, into, &mut self.scratch).map_err(|e| format!("a page can't be loaded: {e:?}"))?;
                }
                _ => into.fill(0),
            }
            black_box(&into);
        }
        Ok(())
    }

    pub fn free(&mut self) {
        for kept in self.kept.drain(..) {
            if let Ok(Stored::Entry(e)) = kept {
                self.store.free(e);
            }
        }
    }
}
