//! The help: keys and the meaning of numbers.

use crate::top::theme::Theme;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

const HELP: &str = "\
+ -        the limit: an eighth more or less
l          the limit: type a size
r          move pages out: type how much
a          add a swap area: type its SPEC
s          take a swap area off: type its number
c, Esc     cancel what goes on
tab, up, down   another run
page up, page down   processes
q, ^C      quit; the run goes on

RAM is what counts against the limit; all is the program's memory, wherever it is.
waiting: the share of the time in which a thread waited for a page. p50, p99: how long one waited; \
all: since the start. refaults: pages missed after they went out; near: those that a quarter more RAM \
would have kept.";

/// Over the middle of the screen.
pub fn draw(theme: Theme, frame: &mut Frame<'_>) {
    let screen = frame.area();
    let (width, height) = (screen.width.min(72), screen.height.min(20));
    let (x, y) = (screen.x + (screen.width - width) / 2, screen.y + (screen.height - height) / 2);
    let place = Rect { x, y, width, height };
    let mut block = Block::bordered().title(Line::styled(" any key: back ", theme.heading()));
    if !theme.has_signs {
        block = block.border_set(PLAIN);
    }
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: false }).block(block), place);
}

const PLAIN: ratatui::symbols::border::Set<'static> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};
