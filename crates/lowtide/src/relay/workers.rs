//! The threads that serve channels. Each has a connection to the server; whoever is free takes the next channel that has
//! something to say.

use super::channel::{Channel, Rooms, Waits, Worked};
use super::devices::{Device, Devices};
use super::{locked, spawn};
use crate::supervisor::peer;
use lowtide_remote::pages::Pages;
use lowtide_remote::server::Remote;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Threads at least, and at most: as many as there are CPUs. One waits for the server while others serve other processes.
const LEAST: usize = 2;
const MOST: usize = 4;
/// What has something to say, beside channels.
const LISTENER: u64 = 0;
const END: u64 = 1;
const FIRST_CHANNEL: u64 = 2;

/// The threads.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Readable when it is all over.
    end: OwnedFd,
    is_over: AtomicBool,
    channels: Mutex<HashMap<u64, Arc<Mutex<Channel>>>>,
    rooms: Arc<Rooms>,
    next: AtomicU64,
    devices: Arc<Devices>,
    /// Who removes what nobody can read any more.
    gone: Sender<Arc<Device>>,
}

impl Workers {
    /// Starts them.
    ///
    /// # Errors
    /// No descriptor, or no thread, is left.
    pub fn start(
        listener: OwnedFd,
        remote: &Arc<Remote>,
        devices: &Arc<Devices>,
        gone: Sender<Arc<Device>>,
    ) -> std::io::Result<Workers> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN | EventFlags::ONESHOT)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        let cpus = std::thread::available_parallelism().map_or(LEAST, usize::from).clamp(LEAST, MOST);
        let shared = Arc::new(Shared {
            epoll,
            listener,
            end,
            is_over: AtomicBool::new(false),
            channels: Mutex::default(),
            rooms: Arc::new(Rooms::new(cpus)),
            next: AtomicU64::new(FIRST_CHANNEL),
            devices: devices.clone(),
            gone,
        });
        let mut workers = Workers { shared, threads: Vec::new() };
        for _ in 0..cpus {
            let (shared, pages) = (workers.shared.clone(), Pages::new(remote.clone()));
            workers.threads.push(spawn("lowtide-pages", move || shared.work(pages))?);
        }
        Ok(workers)
    }

    /// Ends them: all processes are gone, or what they still ask does not matter. What there is of devices is to be removed.
    pub fn stop(self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
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
                LISTENER => self.accept(),
                number => {
                    // Nobody else has it: it is told of once.
                    let channel = locked(&self.channels).get(&number).cloned();
                    if let Some(channel) = channel {
                        self.serve(number, &mut locked(&channel), &mut pages);
                    }
                }
            }
        }
    }

    fn accept(&self) {
        while let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // A stranger is let go.
            if peer::of_run(&socket).is_some() {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let channel = Arc::new(Mutex::new(Channel::new(socket, self.rooms.clone())));
                let channel_now = locked(&channel);
                locked(&self.channels).insert(number, channel.clone());
                let flags = EventFlags::IN | EventFlags::ONESHOT;
                if epoll::add(&self.epoll, channel_now.as_fd(), EventData::new_u64(number), flags).is_err() {
                    locked(&self.channels).remove(&number);
                }
            }
        }
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let _ = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags);
    }

    fn serve(&self, number: u64, channel: &mut Channel, pages: &mut Pages) {
        loop {
            match channel.work() {
                Worked::Hello(hello) => channel.greet(self.devices.open(hello)),
                Worked::Asked if channel.perform(pages) => {}
                Worked::Asked | Worked::Over => break,
                Worked::Waits(waits) => {
                    let flags = match waits {
                        Waits::ToRead => EventFlags::IN,
                        Waits::ToWrite => EventFlags::OUT,
                    };
                    let data = EventData::new_u64(number);
                    let _ = epoll::modify(&self.epoll, channel.as_fd(), data, flags | EventFlags::ONESHOT);
                    return;
                }
            }
        }
        // Closed when the last of these is dropped.
        let _ = epoll::delete(&self.epoll, channel.as_fd());
        locked(&self.channels).remove(&number);
        if let Some(device) = channel.device()
            && let Some(gone) = self.devices.close(device)
        {
            let _ = self.gone.send(gone);
        }
    }
}
