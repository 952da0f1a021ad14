//! The policy's tables.

use super::evicted::Evicted;
use super::policy::Step::*;
use super::policy::*;
use lowtide_wire::Watermarks;

const MIB: u64 = 1 << 20;
const MARKS: Watermarks = Watermarks::of(1024 * MIB);

/// A run of one process under 1 GiB with faults.
fn look(total: u64) -> Look {
    Look {
        marks: MARKS,
        ceiling: MARKS.limit(),
        total,
        mine: total,
        batch: MIB / 2,
        was_above: true,
        faults_come: true,
        quiet: false,
        still_us: 0,
        above_high: total > MARKS.high(),
        at_limit: false,
        coming_down: false,
        gives_way: false,
        grows_unseen: true,
        is_woken: true,
        may_reap: false,
        resorts_are_due: true,
        search_rests_us: 500,
        touch_rate: touch_rate(2),
    }
}

fn tidies(look: &Look) -> Ladder {
    match plan(look) {
        Plan::Tidy(ladder) => ladder,
        evicts => panic!("{evicts:?}"),
    }
}

#[test]
fn nothing_is_evicted_below_the_low_watermark_and_something_above_it() {
    assert!(matches!(plan(&look(MARKS.low())), Plan::Tidy(_)));
    assert!(matches!(plan(&look(MARKS.low() + 1)), Plan::Evict { times: 1, .. }));
    let gives_way = |total| Look { gives_way: true, ..look(total) };
    assert!(matches!(plan(&gives_way(MARKS.giving_way())), Plan::Tidy(_)));
    assert!(matches!(plan(&gives_way(MARKS.giving_way() + 1)), Plan::Evict { .. }));
}

#[test]
fn below_it_the_pool_is_tidied_when_nobody_waits_for_that() {
    let (near, far) = (MARKS.register() + MIB, MARKS.register());
    let rows: [(u64, bool, &[Step]); 4] = [
        (near, false, &[ForgetCompressor]),
        (far, false, &[Maintain, ShrinkPool, CompactPool, ForgetCompressor]),
        (near, true, &[Maintain, ShrinkPool, CompactPool, Recompress, ForgetCompressor]),
        (far, true, &[Maintain, ShrinkPool, CompactPool, Recompress, ForgetCompressor]),
    ];
    for (total, quiet, steps) in rows {
        assert_eq!(tidies(&Look { quiet, ..look(total) }).steps, steps, "{total}, quiet: {quiet}");
    }
}

#[test]
fn it_sleeps_the_longer_the_more_room_there_is() {
    let room = |mib| MARKS.high() - mib * MIB;
    // For unseen growth at most 64 MiB are relied on.
    let rows = [
        // room, quiet, unseen: microseconds
        (room(500), false, true, 64 * MIB / 6_000),
        (room(500), false, false, 500 * MIB / 6_000),
        (room(500), true, false, LONGEST_NAP_US),
        (room(500), true, true, 64 * MIB / 6_000),
        (room(25), true, true, QUIET_NAP_US),
        (room(25), false, true, 25 * MIB / 6_000),
    ];
    for (total, quiet, grows_unseen, us) in rows {
        let ladder = tidies(&Look { quiet, grows_unseen, ..look(total) });
        assert_eq!(ladder.otherwise, Nap::UntilFaults(us), "{total}, quiet: {quiet}, unseen: {grows_unseen}");
        assert_eq!(ladder.worked, Nap::UntilFaults(SHORTEST_NAP_US));
    }
}

#[test]
fn it_sleeps_the_longer_the_longer_nothing_has_happened() {
    for (still_us, us) in [(0, 5_000), (320_000, 5_000), (1_280_000, 20_000), (6_400_000, 25_000), (60_000_000, 25_000)] {
        let still = Look { quiet: true, still_us, ..look(MARKS.low()) };
        assert_eq!(tidies(&still).otherwise, Nap::UntilFaults(us), "{still_us}");
    }
}

#[test]
fn what_nothing_wakes_sleeps_no_longer_than_the_room_lasts_however_still_it_is() {
    for (room, us) in [(500 * MIB, 64 * MIB / 6_000), (25 * MIB, 25 * MIB / 6_000), (16 * MIB, 16 * MIB / 6_000)] {
        let still = Look { quiet: true, still_us: 60_000_000, is_woken: false, ..look(MARKS.high() - room) };
        assert_eq!(tidies(&still).otherwise, Nap::UntilFaults(us), "{room}");
    }
}

#[test]
fn however_many_processes_sleep_they_wake_twenty_times_a_second() {
    // processes; microseconds of the longest nap of three of them
    let rows = [
        (1, [75_000, 100_000, 125_000]),
        (6, [202_500, 270_000, 337_500]),
        (100, [3_375_000, 4_500_000, 5_625_000]),
        (300, [10_125_000, 13_500_000, 16_875_000]),
        (1000, [11_250_000, 15_000_000, 18_750_000]),
    ];
    for (processes, naps) in rows {
        assert_eq!([0, 1, 2].map(|number| long_nap_us(u64::MAX, processes, number)), naps, "{processes}");
        let growing = [0, 5_000, 10_000, 20_000].map(|still_us| long_nap_us(still_us, processes, 7));
        assert_eq!(growing, [5_000, 5_000, 10_000, 20_000], "twice as long each time");
    }
}

#[test]
fn processes_that_sleep_long_can_grow_by_no_more_than_there_is_room_for() {
    // room, processes: bytes
    let rows =
        [(1024 * MIB, 4, 256 * MIB), (1024 * MIB, 1000, 2 * MIB), (0, 1, 2 * MIB), (0, 300, 2 * MIB), (3 * MIB, 0, 3 * MIB)];
    for (room, processes, bytes) in rows {
        assert_eq!(unwatched(room, processes), bytes, "{room}, {processes} processes");
    }
}

#[test]
fn more_cpus_touch_more_so_it_sleeps_less() {
    let rows = [
        // CPUs: gigabytes a second; microseconds of a room of 60 MiB; of 1 GiB; of 6 MiB when
        // handlers detach
        (1, 6, 10_485, LONGEST_NAP_US, 1_048),
        (2, 6, 10_485, LONGEST_NAP_US, 1_048),
        (3, 9, 6_990, LONGEST_NAP_US, 699),
        (16, 48, 1_310, 22_369, 131),
        (64, 192, SHORTEST_NAP_US, 5_592, SHORTEST_AHEAD_US),
    ];
    for (cpus, rate, some, much, ahead) in rows {
        assert_eq!(touch_rate(cpus), rate * 1000, "{cpus} CPUs");
        assert_eq!((nap_us(60 * MIB, rate * 1000), nap_us(1024 * MIB, rate * 1000)), (some, much), "{cpus} CPUs");
        let near = Look { touch_rate: touch_rate(cpus), ..look(MARKS.high() - 60 * MIB) };
        assert_eq!(tidies(&near).otherwise, Nap::UntilFaults(some), "{cpus} CPUs");
        let full = Look { touch_rate: touch_rate(cpus), ..look(MARKS.limit() - 6 * MIB) };
        assert_eq!(after(&full, Evicted::Ahead).unwrap().otherwise, Nap::UntilFaults(ahead), "{cpus} CPUs");
    }
}

#[test]
fn where_faults_come_their_threads_detach_and_the_reclaimer_stores() {
    let above = look(MARKS.high());
    assert_eq!(eviction(&above), How::DrainStaged);
    assert_eq!(eviction(&Look { faults_come: false, ..above }), How::Detach, "nobody else is there to do it");
    assert_eq!(eviction(&Look { at_limit: true, ..above }), How::Detach, "faults wait for room");
    assert_eq!(eviction(&Look { coming_down: true, ..above }), How::Detach, "the limit was lowered");
}

#[test]
fn each_process_evicts_its_part_and_measures_again_soon() {
    let times = |look: Look| match plan(&look) {
        Plan::Evict { times, .. } => times,
        Plan::Tidy(_) => panic!("too much is in memory"),
    };
    let total = MARKS.low() + 4 * MIB;
    assert_eq!(times(look(total)), 4, "2 MiB of 4, then it measures");
    assert_eq!(times(Look { mine: total / 4, ..look(total) }), 2, "a quarter of 4 MiB");
    assert_eq!(times(Look { mine: total / 4, gives_way: true, ..look(total) }), 4, "all of it");
    assert_eq!(times(Look { mine: 0, ..look(total) }), 1);
    assert_eq!(times(Look { batch: 8 * MIB, ..look(total) }), 1, "a batch is the least");
    let first = |was_above| match plan(&Look { was_above, ..look(total) }) {
        Plan::Evict { first, .. } => first,
        Plan::Tidy(_) => panic!("too much is in memory"),
    };
    assert_eq!([first(false), first(true)], [Some(DrainFrames), None]);
}

#[test]
fn what_follows_when_eviction_comes_to_nothing() {
    let over = look(MARKS.limit() + MIB);
    let below = look(MARKS.low() + MIB);
    let rows: [(Look, Evicted, &[Step], Nap, Nap); 9] = [
        (below, Evicted::Later, &[], Nap::UntilFaults(50), Nap::UntilFaults(50)),
        (below, Evicted::Ahead, &[], Nap::UntilFaults(AHEAD_US), Nap::UntilFaults(AHEAD_US)),
        (over, Evicted::Ahead, &[], Nap::UntilFaults(SHORTEST_AHEAD_US), Nap::UntilFaults(SHORTEST_AHEAD_US)),
        (below, Evicted::Nothing, &[DrainFrames, Exhausted, GiveUp], Nap::UntilFaults(0), Nap::Undisturbed(10_000)),
        (
            over,
            Evicted::Nothing,
            &[DrainFrames, ShrinkPool, CompactPool, Exhausted, GiveUp],
            Nap::UntilFaults(0),
            Nap::Undisturbed(10_000),
        ),
        (
            Look { gives_way: true, ..over },
            Evicted::Nothing,
            &[DrainFrames, EmptyPool, CompactPool, GiveUp],
            Nap::UntilFaults(1_000),
            Nap::Undisturbed(10_000),
        ),
        (below, Evicted::Full, &[GiveUp, DrainFrames, CompactPool, Full], Nap::UntilFaults(0), Nap::Undisturbed(100_000)),
        (
            Look { may_reap: true, ..over },
            Evicted::Full,
            &[GiveUp, DrainFrames, Reap, CompactPool, Full],
            Nap::UntilFaults(0),
            Nap::Undisturbed(10_000),
        ),
        (Look { resorts_are_due: false, ..over }, Evicted::Searching, &[GiveUp], Nap::UntilFaults(0), Nap::Undisturbed(500)),
    ];
    for (i, (look, evicted, steps, worked, otherwise)) in rows.into_iter().enumerate() {
        assert_eq!(after(&look, evicted), Some(Ladder { steps, worked, otherwise }), "row {i}: {evicted:?}");
    }
    assert_eq!(after(&over, Evicted::Progress), None);
}

#[test]
fn the_program_runs_half_of_the_time_on_the_way_down_to_a_lower_limit() {
    let down = Look { coming_down: true, ..look(MARKS.limit() * 2) };
    assert_eq!(between_turns(&down, 300), Nap::UntilFaults(300));
    assert_eq!(between_turns(&down, 1_000_000), Nap::UntilFaults(LONGEST_NAP_US));
    assert_eq!(between_turns(&look(MARKS.limit()), 300), Nap::UntilFaults(0));
}
