//! Where a forked child has the pages of a move that lowtide makes, if the move and a raw fork are
//! read out of order.

use crate::mappings::made_move::MadeMove;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::space::Exclusive;
use crate::sys::Range;
use crate::sys::uffd::{Standing, Uffd};

impl MadeMove {
    /// How the child's places differ. `in_child`: how memory stood when it was cloned.
    pub(super) fn seen_by_child(&self, in_child: impl Fn(Range) -> Standing) -> Result<Shift, CanNotTell> {
        use Standing::{Changing, NotRegistered, Registered};
        let MadeMove { asked, moved, stood, has_returned, is_late, is_reused, follows_late, .. } = *self;
        if follows_late {
            return Err(CanNotTell);
        }
        if let Some([from, to]) = moved {
            return match in_child(from) {
                NotRegistered => Ok(Shift::NONE),
                Registered if is_late && is_reused => Err(CanNotTell),
                Registered if asked.leaves && (is_late || in_child(to) != NotRegistered) => Err(CanNotTell),
                Registered => Ok(Shift::back(from, to)),
                Changing => Err(CanNotTell),
            };
        }
        if has_returned || stood == NotRegistered {
            return Ok(Shift::NONE);
        }
        match (asked.to, in_child(asked.from)) {
            _ if asked.leaves => Err(CanNotTell),
            (None, _) | (Some(_), Registered) => Ok(Shift::NONE),
            (Some(to), NotRegistered) if stood == Registered => Ok(Shift::ahead(asked.from, to)),
            (Some(_), _) => Err(CanNotTell),
        }
    }
}

/// Where a child's pages differ from this process's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shift {
    /// Here in the tables, ...
    known: Range,
    /// ... from here on in the child.
    at: usize,
    /// In the tables, not in the child.
    pub(super) gone: Range,
}

impl Shift {
    pub(super) const NONE: Shift = Shift { known: Range::NONE, at: 0, gone: Range::NONE };

    pub(super) fn back(from: Range, to: Range) -> Shift {
        Shift { known: to, at: from.start, gone: Range::NONE }
    }

    pub(super) fn ahead(from: Range, to: Range) -> Shift {
        let len = (from.end - from.start).min(to.end - to.start);
        Shift { known: Range { end: from.start + len, ..from }, at: to.start, gone: to }
    }

    pub(super) fn of(self, addr: usize) -> Option<usize> {
        let is_in = |range: Range| (range.start..range.end).contains(&addr);
        if is_in(self.known) { Some(addr - self.known.start + self.at) } else { (!is_in(self.gone)).then_some(addr) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CanNotTell;

impl Pager {
    /// The child's place for `page`. It differs if a move and a raw fork are read out of order. The
    /// child's registrations are those of the cloning; nothing is registered during the call. Where
    /// they don't tell the order, the run ends.
    pub(crate) fn page_of_child(&self, _: &Exclusive<'_>, child: &Uffd) -> impl Fn(PageNo) -> Option<PageNo> + use<> {
        let made = self.mappings.order.lock().made;
        let in_child = |range: Range| match child.standing(range.start) {
            // Gone: there is nothing to fill.
            Standing::Changing if child.is_gone(range.start) => Standing::NotRegistered,
            standing => standing,
        };
        let shift = made.map_or(Ok(Shift::NONE), |made| made.seen_by_child(in_child));
        let shift = shift.unwrap_or_else(|CanNotTell| self.can_t_tell());
        move |page| shift.of(page.addr()).map(PageNo::of)
    }

    fn can_t_tell(&self) -> ! {
        (self.host.fatal)(b"memory was moved (mremap) while the program forked: the child can't know where it is")
    }
}
