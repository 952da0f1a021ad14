//! A terminal of our own: what a program writes there, keys, another size, and what is left when it ends.

use rustix::fd::OwnedFd;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Whatever is waited for comes within this time.
const DEADLINE: Duration = Duration::from_secs(60);

/// A terminal with a program on it, which is its session's leader. Killed when it is dropped.
pub struct Terminal {
    keys: File,
    /// The side of the program, to look at its modes.
    slave: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
    child: Child,
}

impl Terminal {
    /// Starts a program on a terminal of so many columns and rows.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).expect("a terminal");
        rustix::pty::unlockpt(&master).expect("unlocked");
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).expect("its other side");
        rustix::termios::tcsetwinsize(&master, winsize(columns, rows)).expect("its size");
        let side = || slave.try_clone().expect("cloned");
        command.stdin(side()).stdout(side()).stderr(side());
        // SAFETY: between fork and exec, five system calls.
        unsafe {
            command.pre_exec(|| {
                // They stay ignored where the tests are started by nohup, or in a shell's background.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().expect("it starts");
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(rows), size(columns), 0)));
        let (mut from, to) = (File::from(master.try_clone().expect("cloned")), screen.clone());
        let reader = thread::spawn(move || {
            let mut chunk = [0; 4096];
            // An error: nobody has the other side any more.
            while let Ok(n) = from.read(&mut chunk) {
                to.lock().expect("no panic").process(&chunk[..n]);
            }
        });
        Terminal { keys: File::from(master), slave, screen, reader: Some(reader), child }
    }

    /// All that is on the screen.
    pub fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    /// Waits until it shows this.
    #[track_caller]
    pub fn shows(&self, words: &str) {
        self.wait_until(words, |text| text.contains(words));
    }

    /// Waits until what it shows is so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&str) -> bool) {
        let until = Instant::now() + DEADLINE;
        loop {
            let text = self.text();
            if is_so(&text) {
                return;
            }
            assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}; there is:\n{text}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("pressed");
    }

    /// Changes its size.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().expect("no panic").screen_mut().set_size(size(rows), size(columns));
        rustix::termios::tcsetwinsize(&self.keys, winsize(columns, rows)).expect("its size");
    }

    /// Whether a colour is on the screen.
    pub fn has_colours(&self) -> bool {
        let parser = self.screen.lock().expect("no panic");
        let (screen, (rows, columns)) = (parser.screen(), parser.screen().size());
        let cells = (0..rows.get()).flat_map(|y| (0..columns.get()).map(move |x| (y, x)));
        let mut colours = cells.filter_map(|(y, x)| screen.cell(y, x)).map(|cell| (cell.fgcolor(), cell.bgcolor()));
        colours.any(|colours| colours != (vt100::Color::Default, vt100::Color::Default))
    }

    /// Whether it is as a shell has it, at the latest when all that was written has come: lines are edited and shown, the
    /// cursor is there, and so is what was on the screen before.
    pub fn is_as_before(&self) -> bool {
        let until = Instant::now() + Duration::from_secs(2);
        while !self.is_a_shells() {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Whether it is so now.
    pub fn is_a_shells(&self) -> bool {
        let modes = rustix::termios::tcgetattr(&self.slave).expect("its modes").local_modes;
        let parser = self.screen.lock().expect("no panic");
        let is_cooked = modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        is_cooked && !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
    }

    /// The pid of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the program; its status, and the terminal as it is then.
    #[track_caller]
    pub fn ends(&mut self) -> ExitStatus {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("waited for") {
                // What it wrote last is on its way.
                thread::sleep(Duration::from_millis(100));
                return status;
            }
            assert!(Instant::now() < until, "it does not end within {DEADLINE:?}:\n{}", self.text());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The reader ends with the last descriptor of the other side; it is not waited for, some other process may still have
        // one.
        drop(self.reader.take());
    }
}

fn size(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).expect("not 0")
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
