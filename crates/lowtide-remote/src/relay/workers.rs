//! The threads that serve channels. Each has its own connections to the servers; a free one takes
//! the next ready channel.

use super::channel::{Channel, Performed, Rooms, Waits, Worked};
use super::devices::{Device, Devices};
use super::{locked, spawn};
use crate::pages::Pages;
use crate::pause::Pause;
use crate::remote::Remote;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bounds of one thread for each CPU: some wait for the server, others serve.
const LEAST: usize = 2;
const MOST: usize = 4;
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);
/// Epoll data of an event other than a channel's.
const END: u64 = 0;
const FIRST_CHANNEL: u64 = 1;

pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    epoll: OwnedFd,
    listener: OwnedFd,
    is_ours: fn(&OwnedFd) -> bool,
    /// Readable at the end.
    end: OwnedFd,
    is_over: AtomicBool,
    channels: Mutex<HashMap<u64, Arc<Mutex<Channel>>>>,
    rooms: Arc<Rooms>,
    next: AtomicU64,
    devices: Arc<Devices>,
    gone: Sender<Arc<Device>>,
    remote: Arc<Remote>,
    /// Channels with unavailable pages; none: a node is away.
    late: Sender<Option<u64>>,
}

impl Workers {
    /// Starts them.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn start(
        listener: OwnedFd,
        is_ours: fn(&OwnedFd) -> bool,
        remote: &Arc<Remote>,
        devices: &Arc<Devices>,
        gone: Sender<Arc<Device>>,
    ) -> std::io::Result<Workers> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        let cpus = std::thread::available_parallelism().map_or(LEAST, usize::from).clamp(LEAST, MOST);
        let (late, are_late) = channel();
        let shared = Arc::new(Shared {
            epoll,
            listener,
            is_ours,
            end,
            is_over: AtomicBool::new(false),
            channels: Mutex::default(),
            rooms: Arc::new(Rooms::new(cpus)),
            next: AtomicU64::new(FIRST_CHANNEL),
            devices: devices.clone(),
            gone,
            remote: remote.clone(),
            late,
        });
        let mut workers = Workers { shared, threads: Vec::new() };
        let shared = workers.shared.clone();
        workers.threads.push(spawn("lowtide-door", move || shared.let_in())?);
        let shared = workers.shared.clone();
        workers.threads.push(spawn("lowtide-late", move || shared.look_after(&are_late))?);
        for _ in 0..cpus {
            let (shared, pages) = (workers.shared.clone(), Pages::new(remote.clone()));
            workers.threads.push(spawn("lowtide-pages", move || shared.work(pages))?);
        }
        Ok(workers)
    }

    /// Ends them and passes all devices on for removal.
    pub fn stop(self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        let _ = self.shared.late.send(None);
        self.threads.into_iter().for_each(|thread| _ = thread.join());
        self.shared.devices.take_all().into_iter().for_each(|device| _ = self.shared.gone.send(device));
    }
}

impl Shared {
    fn work(&self, mut pages: Pages) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        while !self.is_over.load(Ordering::Relaxed) {
            match epoll::wait(&self.epoll, &mut events, None) {
                Ok(1) => {}
                Ok(_) | Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            match events[0].data.u64() {
                END => return,
                number => {
                    // The oneshot event came to this thread only.
                    let channel = locked(&self.channels).get(&number).cloned();
                    if let Some(channel) = channel {
                        let device = {
                            let mut channel = locked(&channel);
                            self.serve(number, &mut channel, &mut pages);
                            channel.device().cloned()
                        };
                        // No process waits for this.
                        pages.report(|slot| device.as_ref().is_some_and(|device| device.keeps(slot)));
                    }
                }
            }
        }
    }

    /// Accepts processes in a thread of its own, apart from slow requests.
    fn let_in(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let mut polled = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN)];
            if poll(&mut polled, None).is_err() {
                continue;
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if (self.is_ours)(&socket) => self.greet(socket),
                Err(error) if error != Errno::AGAIN => std::thread::sleep(NO_DESCRIPTOR),
                _ => {}
            }
        }
    }

    /// Answers a process's prompt hello; the workers do the rest.
    fn greet(&self, socket: OwnedFd) {
        let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&soon));
        let mut channel = Channel::new(socket, self.rooms.clone());
        let waits = loop {
            match channel.work() {
                Worked::Hello(hello) => channel.greet(self.devices.open(hello)),
                Worked::Waits(waits) => break waits,
                // A request is here already; a writable socket triggers a worker at once.
                Worked::Asked => break Waits::ToWrite,
                Worked::Over => return self.is_left(&channel),
            }
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let channel = Arc::new(Mutex::new(channel));
        let channel_now = locked(&channel);
        locked(&self.channels).insert(number, channel.clone());
        let flags = flags_of(&waits) | EventFlags::ONESHOT;
        if epoll::add(&self.epoll, channel_now.as_fd(), EventData::new_u64(number), flags).is_err() {
            locked(&self.channels).remove(&number);
            self.is_left(&channel_now);
        }
    }

    fn serve(&self, number: u64, channel: &mut Channel, pages: &mut Pages) {
        loop {
            match channel.work() {
                Worked::Hello(hello) => channel.greet(self.devices.open(hello)),
                Worked::Asked => match channel.perform(pages) {
                    Performed::Done if self.remote.has_away() => {
                        let _ = self.late.send(None);
                    }
                    Performed::Done => {}
                    Performed::Later => {
                        let _ = self.late.send(Some(number));
                        return;
                    }
                    Performed::Nonsense => break,
                },
                Worked::Over => break,
                Worked::Waits(waits) => return self.wait(number, channel, waits),
            }
        }
        // The last reference closes it.
        let _ = epoll::delete(&self.epoll, channel.as_fd());
        locked(&self.channels).remove(&number);
        self.is_left(channel);
    }

    fn wait(&self, number: u64, channel: &Channel, waits: Waits) {
        let flags = flags_of(&waits) | EventFlags::ONESHOT;
        let _ = epoll::modify(&self.epoll, channel.as_fd(), EventData::new_u64(number), flags);
    }

    /// Checks nodes that are away and retries waiting channels: the workers serve available pages.
    fn look_after(&self, late: &Receiver<Option<u64>>) {
        let (mut waiting, mut pause): (Vec<u64>, Pause) = (Vec::new(), Pause::default());
        while !self.is_over.load(Ordering::Relaxed) {
            if !self.remote.has_away() {
                pause = Pause::default();
                let Ok(one) = late.recv() else { return };
                waiting.extend(one);
            }
            pause.wait();
            waiting.extend(late.try_iter().flatten());
            self.remote.look();
            for number in waiting.drain(..) {
                let channel = locked(&self.channels).get(&number).cloned();
                // The socket is writable, so a worker takes it now.
                channel.iter().for_each(|channel| self.wait(number, &locked(channel), Waits::ToWrite));
            }
        }
    }

    /// Ends a channel; the last one ends its device.
    fn is_left(&self, channel: &Channel) {
        if let Some(device) = channel.device()
            && let Some(gone) = self.devices.close(device)
        {
            let _ = self.gone.send(gone);
        }
    }
}

fn flags_of(waits: &Waits) -> EventFlags {
    match waits {
        Waits::ToRead => EventFlags::IN,
        Waits::ToWrite => EventFlags::OUT,
    }
}
