//! Programs that change what surrounds them: descriptors, their children's LD_PRELOAD.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::turn;
use crate::programs::{job, library};

#[test]
fn closes_all_descriptors() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("closes all descriptors", "closes_files", "160") else { return };
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}

#[test]
fn preloads_a_library_into_its_child() {
    let Some(_turn) = turn() else { return };
    let (Some(job), Some(library)) = (job("own LD_PRELOAD", "own_preload", "96"), library("harmless_preload")) else { return };
    compare(&job.args([library]), Growth::Stream, Data::Any, ends_well);
}
