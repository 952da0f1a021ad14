//! Regions that share a RAM limit, a pool and swap.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder as Thread, JoinHandle};

use lowtide_config::codec;
use lowtide_config::ram::LEAST;
use lowtide_core::codec::Codec;
use lowtide_pager::fault::Handler;
use lowtide_pager::pages::Worker;

use crate::error::Error;
use crate::fork::{self, Process};
use crate::instance::{Delivery, Instance, Kind, Threads};
use crate::reclaimer::ReclaimerThread;
use crate::server::ServerThreads;
use crate::stats::Stats;
use crate::swap::Swap;
use crate::{sigbus, signals};

/// The properties of a group: see [`Group::builder`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct GroupBuilder {
    pub(crate) ram: Option<u64>,
    pub(crate) swap: Option<Swap>,
    pub(crate) codec: Option<Codec>,
    pub(crate) delivery: Option<Delivery>,
}

impl GroupBuilder {
    /// The RAM limit in bytes: pages in memory, compressed pages, and lowtide's tables. At least
    /// [`LEAST_RAM`](crate::LEAST_RAM).
    pub fn ram(mut self, bytes: u64) -> Self {
        self.ram = Some(bytes);
        self
    }

    /// Where pages go that leave RAM.
    pub fn swap(mut self, swap: Swap) -> Self {
        self.swap = Some(swap);
        self
    }

    /// The compressor of pages in RAM.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = Some(codec);
        self
    }

    /// How missing pages come in.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// Makes the group.
    ///
    /// # Errors
    /// [`Error::NoLimit`], [`Error::RamTooSmall`], [`Error::Codec`], [`Error::Swap`]: a bad
    /// property. [`Error::Userfaultfd`], [`Error::UnderRun`], [`Error::System`]: unsupported here.
    pub fn build(self) -> Result<Group, Error> {
        let ram = self.ram.ok_or(Error::NoLimit)?;
        if ram < LEAST {
            return Err(Error::RamTooSmall { ram, least: LEAST });
        }
        if let Some(Codec::Zstd(level)) = self.codec
            && !codec::is_level(level)
        {
            return Err(Error::Codec { level });
        }
        // Set by `lowtide run`.
        if std::env::var_os("LOWTIDE_SEGMENT").is_some() {
            return Err(Error::UnderRun);
        }
        fork::prepare()?;
        let delivery = self.delivery.unwrap_or_default();
        let kind = Kind::new(self.codec.unwrap_or_default(), self.swap.unwrap_or_default(), delivery, ram);
        let server = kind.swap.serve()?;
        let instance = Instance::open(&kind, ram, server.as_ref())?;
        let tenancy = Tenancy::begin(instance, server.map(Arc::new))?;
        if delivery == Delivery::InThread {
            sigbus::install()?;
        }
        Ok(Group(Arc::new(tenancy)))
    }
}

/// A handle to regions that share a RAM limit, a pool and swap. The group lives as long as a clone
/// or a region of it.
#[derive(Debug, Clone)]
pub struct Group(Arc<Tenancy>);

impl Group {
    /// Begins a group.
    pub fn builder() -> GroupBuilder {
        GroupBuilder::default()
    }

    pub(crate) fn instance(&self) -> Result<&'static Instance, Error> {
        self.0.process.must_be_this()?;
        Ok(self.0.instance)
    }

    /// The RAM limit in bytes.
    pub fn ram(&self) -> u64 {
        self.0.instance_or_none().map_or(0, |instance| instance.pager.budget().asked())
    }

    /// Changes the RAM limit, in bytes. The background reaches a lower one step by step, and rests
    /// half of the time.
    ///
    /// # Errors
    /// [`Error::RamTooSmall`]: less than [`LEAST_RAM`](crate::LEAST_RAM), or than twice what guards
    /// keep in memory. [`Error::Forked`].
    pub fn set_ram(&self, bytes: u64) -> Result<(), Error> {
        let instance = self.instance()?;
        let least = LEAST.max(2 * instance.resident.load(Ordering::Relaxed));
        if bytes < least {
            return Err(Error::RamTooSmall { ram: bytes, least });
        }
        let _blocked = signals::block();
        let budget = instance.pager.budget();
        budget.set_ceiling(budget.now().max(budget.limit()));
        budget.set_limit(bytes);
        instance.share(bytes);
        instance.bell.ring();
        Ok(())
    }

    /// The group's present and total figures.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn stats(&self) -> Result<Stats, Error> {
        let instance = self.instance()?;
        let _blocked = signals::block();
        Ok(Stats::of(instance))
    }
}

#[derive(Debug)]
struct Tenancy {
    process: Process,
    instance: &'static Instance,
    server: Option<Arc<ServerThreads>>,
    reclaimer: Option<JoinHandle<Worker>>,
    handlers: Vec<JoinHandle<Handler>>,
    wanted: usize,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("delivery", &self.delivery()).finish_non_exhaustive()
    }
}

impl Tenancy {
    fn begin(instance: &'static Instance, server: Option<Arc<ServerThreads>>) -> Result<Tenancy, Error> {
        let _blocked = signals::block();
        let Some(Threads { reclaimer, handlers }) = instance.take_threads() else {
            unreachable!("an empty instance has its threads' things")
        };
        let wanted = handlers.len();
        let process = Process::this();
        let no_thread = |error: std::io::Error| Error::System {
            what: "starting a thread",
            errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        };
        let reclaimer = ReclaimerThread::new(instance, reclaimer, server.clone());
        let mut tenancy = Tenancy { process, instance, server, reclaimer: None, handlers: Vec::new(), wanted };
        // After a failure the small instance is abandoned.
        let name = |name: &str| Thread::new().name(name.to_owned());
        tenancy.reclaimer = Some(name("lowtide-reclaim").spawn(move || reclaimer.run()).map_err(no_thread)?);
        for handler in handlers {
            let watch = move || watch(instance, handler);
            tenancy.handlers.push(name("lowtide-handler").spawn(watch).map_err(no_thread)?);
        }
        Ok(tenancy)
    }

    fn instance_or_none(&self) -> Option<&'static Instance> {
        self.process.is_this().then_some(self.instance)
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if !self.process.is_this() {
            core::mem::forget((self.reclaimer.take(), core::mem::take(&mut self.handlers), self.server.take()));
            return;
        }
        self.instance.is_closing.store(true, Ordering::Release);
        self.instance.bell.ring();
        let reclaimer = self.reclaimer.take().and_then(|thread| thread.join().ok());
        let handlers: Vec<_> = self.handlers.drain(..).filter_map(|thread| thread.join().ok()).collect();
        // Without all handlers the instance is unusable.
        if let Some(reclaimer) = reclaimer.filter(|_| handlers.len() == self.wanted) {
            self.instance.leave(Threads { reclaimer, handlers }, self.server.take());
        }
    }
}

const WATCH_MS: i32 = 50;

fn watch(instance: &'static Instance, mut handler: Handler) -> Handler {
    while !instance.is_closing.load(Ordering::Acquire) {
        if !handler.turn(&instance.pager).read {
            handler.wait(&instance.pager, WATCH_MS);
        }
        instance.wake_reclaimer();
    }
    handler
}
