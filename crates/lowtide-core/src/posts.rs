//! Assigns threads to posts, one to one: bringing a thread to a post swaps two threads in one step.
//! (A post is a CPU or a group of them; many numbers have no thread.)

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of posts and of thread numbers.
pub const POSTS: usize = 16;
const BITS: usize = u64::BITS as usize / POSTS;
const MASK: u64 = (1 << BITS) - 1;
const AT_FIRST: u64 = 0xfedc_ba98_7654_3210;

/// The assignment. Any thread may use it.
#[derive(Debug)]
pub struct Posts {
    /// The number of the thread at each post.
    threads: AtomicU64,
    /// Changes of the posts' CPUs; wraps.
    changes: AtomicU32,
}

fn at(word: u64, post: usize) -> usize {
    (word >> (post * BITS) & MASK) as usize
}

fn post_of(word: u64, number: usize) -> usize {
    (0..POSTS).find(|&post| at(word, post) == number).unwrap_or(0)
}

impl Posts {
    /// Each thread at the post of its number.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub const fn new() -> Posts {
        Posts { threads: AtomicU64::new(AT_FIRST), changes: AtomicU32::new(0) }
    }

    /// Each thread at the post of its number.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub fn new() -> Posts {
        Posts { threads: AtomicU64::new(AT_FIRST), changes: AtomicU32::new(0) }
    }

    /// Resets to the initial state.
    pub fn reset(&self) {
        self.threads.store(AT_FIRST, Ordering::Relaxed);
    }

    /// The number of the thread at a post.
    pub fn at(&self, post: usize) -> usize {
        at(self.threads.load(Ordering::Relaxed), post)
    }

    /// The post of a thread.
    pub fn post_of(&self, number: usize) -> usize {
        post_of(self.threads.load(Ordering::SeqCst), number)
    }

    /// Swaps thread `number` with the one at `post`, and returns that. The caller
    /// [pins](Posts::pin) both.
    pub fn bring(&self, number: usize, post: usize) -> usize {
        let swapped = |word: u64| {
            // The differing bits, at both posts.
            let (from, differs) = (post_of(word, number), (at(word, post) ^ number) as u64);
            (from != post).then_some(word ^ differs << (from * BITS) ^ differs << (post * BITS))
        };
        // SeqCst, here and in `post_of`: pairs with other pins of the thread, and with a new
        // thread, which registers first.
        match self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, swapped) {
            Ok(before) | Err(before) => at(before, post),
        }
    }

    /// The posts' CPUs have changed. The caller [pins](Posts::pin) all threads again.
    pub fn have_changed(&self) {
        // SeqCst: pairs with the load in `pin`, which sees this if it pins after the thread is
        // pinned again.
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Pins thread `number` by `to`, again if its post or CPUs change meanwhile: the last pin is
    /// right.
    pub fn pin(&self, number: usize, mut to: impl FnMut(usize)) {
        let look = || (self.changes.load(Ordering::SeqCst), self.post_of(number));
        let mut before = look();
        loop {
            to(before.1);
            let now = look();
            if now == before {
                return;
            }
            before = now;
        }
    }
}

impl Default for Posts {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    fn assert_one_at_each(posts: &Posts) {
        for number in 0..POSTS {
            assert_eq!(posts.at(posts.post_of(number)), number);
        }
    }

    #[test]
    fn who_is_brought_changes_places() {
        let posts = Posts::new();
        assert_one_at_each(&posts);
        assert_eq!(posts.bring(3, 15), 15);
        assert_eq!((posts.at(15), posts.at(3)), (3, 15));
        assert_eq!(posts.bring(3, 15), 3);
        assert_eq!(posts.bring(15, 0), 0);
        assert_eq!((posts.post_of(15), posts.post_of(0), posts.post_of(3)), (0, 3, 15));
        assert_one_at_each(&posts);
        posts.reset();
        assert!((0..POSTS).all(|post| posts.at(post) == post));
    }

    #[test]
    fn each_is_at_one_post_whoever_is_brought() {
        for (number, post) in (0..POSTS).flat_map(|number| (0..POSTS).map(move |post| (number, post))) {
            let posts = Posts::new();
            posts.bring(5, 9);
            let (there, from) = (posts.at(post), posts.post_of(number));
            assert_eq!(posts.bring(number, post), there);
            assert_eq!((posts.at(post), posts.at(from)), (number, there));
            assert_one_at_each(&posts);
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod models {
    use super::*;
    use loom::sync::Mutex;
    use loom::thread;
    use std::sync::Arc;

    type Pin = fn(&Posts, usize, &Mutex<usize>);

    fn by_the_rules(posts: &Posts, number: usize, pinned: &Mutex<usize>) {
        posts.pin(number, |post| *pinned.lock().unwrap() = post);
    }

    fn without_a_second_look(posts: &Posts, number: usize, pinned: &Mutex<usize>) {
        let post = posts.post_of(number);
        *pinned.lock().unwrap() = post;
    }

    fn two_bring(pin: Pin) {
        loom::model(move || {
            let (posts, pinned) = (Arc::new(Posts::new()), Arc::new(Mutex::new(0)));
            let bring = |post: usize| {
                let (posts, pinned) = (posts.clone(), pinned.clone());
                move || {
                    posts.bring(0, post);
                    pin(&posts, 0, &pinned);
                }
            };
            let other = thread::spawn(bring(1));
            bring(2)();
            other.join().unwrap();
            assert_eq!(*pinned.lock().unwrap(), posts.post_of(0));
            assert!((0..POSTS).all(|number| posts.at(posts.post_of(number)) == number));
        });
    }

    #[test]
    fn who_is_brought_by_two_is_pinned_to_where_it_is() {
        two_bring(by_the_rules);
    }

    type PinTo = fn(&Posts, &dyn Fn(usize));

    fn one_changes(pin: PinTo) {
        loom::model(move || {
            let (posts, cpu, pinned) = (Arc::new(Posts::new()), Arc::new(AtomicU32::new(7)), Arc::new(Mutex::new((0, 7))));
            let to_post = {
                let (cpu, pinned) = (cpu.clone(), pinned.clone());
                move |post: usize| {
                    let cpu = cpu.load(Ordering::Relaxed);
                    *pinned.lock().unwrap() = (post, cpu);
                }
            };
            let other = thread::spawn({
                let (posts, to_post) = (posts.clone(), to_post.clone());
                move || {
                    posts.bring(0, 1);
                    pin(&posts, &to_post);
                }
            });
            cpu.store(8, Ordering::Relaxed);
            posts.have_changed();
            pin(&posts, &to_post);
            other.join().unwrap();
            assert_eq!(*pinned.lock().unwrap(), (1, 8));
        });
    }

    #[test]
    fn whose_post_becomes_another_is_pinned_to_what_it_is() {
        one_changes(|posts, to| posts.pin(0, to));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn to_look_only_where_it_was_brought_is_found_to_be_too_little() {
        one_changes(|posts, to| {
            let mut post = posts.post_of(0);
            loop {
                to(post);
                let now = posts.post_of(0);
                if now == post {
                    return;
                }
                post = now;
            }
        });
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn one_look_is_found_to_be_too_few() {
        two_bring(without_a_second_look);
    }
}
