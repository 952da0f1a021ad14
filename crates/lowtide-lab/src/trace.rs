//! A trace of slot requests that is the same for every allocator: a full area, random frees, then traffic at one fullness.
//!
//! Objects have numbers and orders; where they land is the allocator's affair, so the trace does not depend on it. (An object that
//! finds no run is kept in single slots, as a folio that is split: the fullness stays the same.)

use fastrand::Rng;

/// How a trace is made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Slots of the area.
    pub slots: u64,
    /// Share of them in use while requests are counted.
    pub full: f64,
    /// Share of the single slots that are never freed: the trap.
    pub trapped: f64,
    /// How often to free and to request a [`ROUND`] of the area.
    pub rounds: usize,
    /// For the same trace again.
    pub seed: u64,
}

/// Share of the area that is freed and requested in one round.
const ROUND: f64 = 0.05;
/// How full the area is before the random frees.
const PEAK: f64 = 0.985;
/// Share of the slots that is asked for in each order. The area is filled mostly with single slots; then the traffic swings to and
/// fro between few large folios and many, so that these must find room where single slots were.
type Mix = [(u8, f64); 3];
const FILL: Mix = [(0, 0.75), (4, 0.2), (9, 0.05)];
const SWING: [Mix; 2] = [[(0, 0.3), (4, 0.55), (9, 0.15)], [(0, 0.7), (4, 0.25), (9, 0.05)]];
/// Rounds from one end of the swing to the other.
const SWING_ROUNDS: usize = 5;
/// How often a free is a stretch of neighbours, as when a program ends, rather than one object. (It makes about half of the frees.)
const STRETCHES: f64 = 0.02;
/// Most objects in a stretch.
const STRETCH: usize = 128;

/// A request: the number of the new object and its order.
pub type Request = (u32, u8);

/// First `drops` are freed, then `requests` are made.
#[derive(Debug, Default)]
pub struct Round {
    /// Objects to free.
    pub drops: Vec<u32>,
    /// Objects to allocate.
    pub requests: Vec<Request>,
}

/// A trace.
#[derive(Debug)]
pub struct Trace {
    /// Fills the area.
    pub fill: Vec<Request>,
    /// Frees down to the fullness.
    pub thin: Vec<u32>,
    /// The traffic.
    pub rounds: Vec<Round>,
    /// Objects in all.
    pub objects: usize,
}

impl Trace {
    /// Makes a trace.
    pub fn new(shape: Shape) -> Trace {
        let mut live =
            Live { shape, rng: Rng::with_seed(shape.seed), orders: Vec::new(), state: Vec::new(), mortal: Vec::new(), used: 0 };
        let fill = live.fill_to(PEAK, FILL);
        let thin = live.thin_to(shape.full);
        let rounds = (0..shape.rounds)
            .map(|round| {
                let drops = live.thin_to(shape.full - ROUND);
                Round { drops, requests: live.fill_to(shape.full, SWING[round / SWING_ROUNDS % 2]) }
            })
            .collect();
        Trace { fill, thin, rounds, objects: live.orders.len() }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Mortal,
    Trapped,
    Gone,
}

struct Live {
    shape: Shape,
    rng: Rng,
    orders: Vec<u8>,
    state: Vec<State>,
    /// Objects that may be freed, and some that are gone.
    mortal: Vec<u32>,
    used: u64,
}

impl Live {
    fn slots(&self, share: f64) -> u64 {
        (self.shape.slots as f64 * share) as u64
    }

    /// Requests up to a fullness: a stretch of one order at a time.
    fn fill_to(&mut self, share: f64, mix: Mix) -> Vec<Request> {
        let mut requests = Vec::new();
        let limit = self.slots(share);
        while self.used < limit {
            let (order, stretch) = self.pick_order(mix);
            for _ in 0..stretch {
                // What is left at the end goes in single slots, so that every trace reaches its fullness.
                match limit - self.used {
                    0 => break,
                    left if left < 1 << order => requests.push(self.add(0)),
                    _ => requests.push(self.add(order)),
                }
            }
        }
        requests
    }

    /// An order, and how many objects of it to request in a row; weighted so that the orders get their shares of the slots.
    fn pick_order(&mut self, mix: Mix) -> (u8, usize) {
        let most = |order: u8| match order {
            0 => 64,
            4 => 8,
            _ => 1,
        };
        // A stretch takes half of that, on average.
        let weight = |(order, share): (u8, f64)| share / ((most(order) + 1) as f64 / 2.0 * (1u32 << order) as f64);
        let mut at = self.rng.f64() * mix.into_iter().map(weight).sum::<f64>();
        let picked = mix.into_iter().find(|part| {
            at -= weight(*part);
            at <= 0.0
        });
        let order = picked.map_or(0, |(order, _)| order);
        (order, self.rng.usize(1..=most(order)))
    }

    fn add(&mut self, order: u8) -> Request {
        let id = self.orders.len() as u32;
        self.orders.push(order);
        self.used += 1 << order;
        if order == 0 && self.rng.f64() < self.shape.trapped {
            self.state.push(State::Trapped);
        } else {
            self.state.push(State::Mortal);
            self.mortal.push(id);
        }
        (id, order)
    }

    /// Frees down to a fullness.
    fn thin_to(&mut self, share: f64) -> Vec<u32> {
        let (mut drops, limit) = (Vec::new(), self.slots(share));
        while self.used > limit && !self.mortal.is_empty() {
            let id = self.mortal.swap_remove(self.rng.usize(..self.mortal.len()));
            let stretch = if self.rng.f64() < STRETCHES { self.rng.usize(1..STRETCH) } else { 1 };
            for id in (id..self.orders.len() as u32).take(stretch) {
                if self.used > limit && self.state[id as usize] == State::Mortal {
                    self.state[id as usize] = State::Gone;
                    self.used -= 1 << self.orders[id as usize];
                    drops.push(id);
                }
            }
        }
        drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { slots: 1 << 15, full: 0.8, trapped: 0.05, rounds: 20, seed: 3 };

    #[test]
    fn keeps_its_fullness_and_frees_each_object_once() {
        let trace = Trace::new(SHAPE);
        let mut live = std::collections::HashMap::new();
        let mut used = 0u64;
        let ask = |requests: &[Request], used: &mut u64, live: &mut std::collections::HashMap<u32, u8>| {
            for (id, order) in requests {
                assert!(live.insert(*id, *order).is_none());
                *used += 1 << order;
            }
        };
        ask(&trace.fill, &mut used, &mut live);
        for id in &trace.thin {
            used -= 1 << live.remove(id).unwrap();
        }
        let mut orders = [0u64; 10];
        for round in &trace.rounds {
            round.drops.iter().for_each(|id| used -= 1 << live.remove(id).unwrap());
            ask(&round.requests, &mut used, &mut live);
            round.requests.iter().for_each(|(_, order)| orders[*order as usize] += 1 << order);
            let full = used as f64 / SHAPE.slots as f64;
            assert!((0.795..=0.8).contains(&full), "{full}");
        }
        let all: u64 = orders.iter().sum();
        assert!((0.2..0.6).contains(&(orders[4] as f64 / all as f64)) && orders[9] > 0, "{orders:?}");
    }

    #[test]
    fn is_the_same_every_time() {
        let (a, b) = (Trace::new(SHAPE), Trace::new(SHAPE));
        assert!(a.rounds.iter().zip(&b.rounds).all(|(a, b)| a.drops == b.drops && a.requests == b.requests));
        let other = Trace::new(Shape { seed: 4, ..SHAPE });
        assert!(a.rounds[0].drops != other.rounds[0].drops);
    }
}
