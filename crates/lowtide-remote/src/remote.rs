//! The shared state of all users of a server or cluster: the map, and abandoned connections.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use lowtide_config::server::{Address, Server};

use crate::counts::Counts;
use crate::harm::{Harm, Told};
use crate::map::Map;
use crate::resp::{self, Reply};
use crate::server::{Facts, Link, Login, Problem, asked};
use crate::tls::Trust;

/// Time for each of several nodes to answer before the next is asked.
const LOOK: Duration = Duration::from_secs(1);
/// Factor of the first connection's duration, if that is longer; and the longest time.
const TIMES_AS_LONG: u32 = 3;
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// A server or a cluster of servers for pages.
#[derive(Debug)]
pub struct Remote {
    /// As the user has written it.
    pub server: Server,
    /// Longest time that a read retries.
    pub timeout: Duration,
    /// The counts.
    pub counts: Arc<Counts>,
    /// The map of the run's beginning, which places second copies (`copies.rs`).
    pub begun: Option<Arc<Map>>,
    login: Login,
    known: Mutex<Option<Known>>,
    names: Mutex<HashMap<Address, String>>,
    /// One query at a time.
    asking: Mutex<()>,
    away: Mutex<Vec<Address>>,
    /// Connections abandoned with changing commands under way.
    fences: Mutex<Vec<Fence>>,
    /// Damage of copies to report.
    pub told: Told,
    /// The run is over: reads and writes no longer matter.
    over: AtomicBool,
    /// Some round trips.
    first_took: OnceLock<Duration>,
}

/// The map, as far as known.
#[derive(Debug, Clone)]
pub struct Known {
    /// The map.
    pub map: Arc<Map>,
    asked: u64,
    /// Count of changes.
    pub changes: u64,
    since: Instant,
    /// Time of the latest change.
    pub changed: Option<Instant>,
}

/// An abandoned connection: the server may still carry out its commands, after later ones of other
/// connections.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fence {
    /// Its run id.
    process: String,
    address: Address,
    /// The connection's id at the server.
    client: i64,
    since: Instant,
}

/// The descriptions of all nodes that have slots.
#[derive(Debug)]
pub struct Survey {
    /// The map.
    pub map: Arc<Map>,
    /// Of each: address, its part of all slots, and its facts.
    pub primaries: Vec<(Address, f64, Facts)>,
}

impl Remote {
    /// Reads the files of TLS; makes no connection.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(server: Server, password: Option<String>, timeout: Duration) -> Result<Remote, String> {
        let counts = Arc::new(Counts::default());
        let trust = server.tls.as_ref().map(Trust::of).transpose()?;
        let login = Login { user: server.user.clone(), password, db: server.db, counts: counts.clone(), trust };
        Ok(Remote {
            server,
            timeout,
            counts,
            begun: None,
            login,
            known: Mutex::default(),
            names: Mutex::default(),
            asking: Mutex::default(),
            away: Mutex::default(),
            fences: Mutex::default(),
            told: Told::default(),
            over: AtomicBool::new(false),
            first_took: OnceLock::new(),
        })
    }

    /// Enables two copies of each page on different nodes; call it first. Returns a warning.
    ///
    /// # Errors
    /// There are not enough nodes.
    pub fn keep_two_copies(&mut self, survey: &Survey, deadline: Instant) -> Result<Option<String>, Problem> {
        if survey.primaries.len() < 3 {
            let (what, n) = (if survey.map.is_cluster { "a cluster" } else { "no cluster" }, survey.primaries.len());
            let why = format!("copies=2 takes three primaries, of which two go on when one is lost, and it is {what} ({n})");
            return Err(Problem::Refused(why));
        }
        self.begun = Some(survey.map.clone());
        let words: [&[u8]; 3] = [b"CONFIG", b"GET", b"cluster-require-full-coverage"];
        let stops = |address: &Address| {
            let says = self.connect(address, deadline).and_then(|mut link| asked(&mut link.connection, &words));
            matches!(says, Ok(Reply::List(pair)) if pair.contains(&Reply::Bytes(b"yes".to_vec())))
        };
        Ok(survey.primaries.iter().any(|(address, ..)| stops(address)).then(|| {
            "copies=2: the cluster stops as a whole while slots have no node: set cluster-require-full-coverage no on its nodes"
                .to_owned()
        }))
    }

    /// Ends reads and writes: their retries give up soon.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether [`Remote::end`] was called.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Connects to one of the servers.
    ///
    /// # Errors
    /// As [`Login::connect`].
    pub fn connect(&self, address: &Address, deadline: Instant) -> Result<Link, Problem> {
        // A node named by the user has that name; others have their announced names.
        let said = if self.server.hosts.contains(address) { None } else { locked(&self.names).get(address).cloned() };
        let began = Instant::now();
        let link = self.login.connect(address, said.as_ref().unwrap_or(&address.host), deadline)?;
        self.first_took.get_or_init(|| began.elapsed());
        Ok(link)
    }

    /// Deadline of a quick query, later for distant servers.
    fn soon(&self) -> Instant {
        let far = self.first_took.get().map_or(Duration::ZERO, |took| *took * TIMES_AS_LONG);
        Instant::now() + far.clamp(LOOK, LONGEST_LOOK)
    }

    /// The known node for an address that may contain a host name.
    pub fn meant(&self, address: Address) -> Address {
        let names = locked(&self.names);
        let is_it = |(node, name): &(&Address, &String)| node.port == address.port && **name == address.host;
        let node = names.iter().find(is_it).map(|(node, _)| node.clone());
        node.unwrap_or(address)
    }

    /// Connects to a node of a cluster, according to `map`.
    ///
    /// # Errors
    /// As [`Login::connect`]; another node or server listens there now.
    pub fn connect_to_node(&self, address: &Address, map: &Map, deadline: Instant) -> Result<Link, Problem> {
        let mut link = self.connect(address, deadline)?;
        if map.is_cluster && !map.is_node(address, &cluster_nodes(&mut link)?) {
            return Err(Problem::Away("another server listens there now".to_owned()));
        }
        Ok(link)
    }

    /// The map; asks for it if unknown.
    ///
    /// # Errors
    /// No node answers.
    pub fn known(&self, deadline: Instant) -> Result<Known, Problem> {
        let known = locked(&self.known).clone();
        known.map_or_else(|| self.ask(None, deadline), Ok)
    }

    /// A map asked for after `than`. A standalone server's never changes.
    ///
    /// # Errors
    /// No node answers.
    pub fn newer(&self, than: &Known, deadline: Instant) -> Result<Known, Problem> {
        if than.map.is_cluster { self.ask(Some(than), deadline) } else { Ok(than.clone()) }
    }

    /// The same, but without a query within a second of the last one.
    ///
    /// # Errors
    /// No node answers.
    pub fn newer_soon(&self, than: &Known, deadline: Instant) -> Result<(), Problem> {
        let was_asked = locked(&self.known).as_ref().is_some_and(|known| known.since.elapsed() < LOOK);
        if was_asked { Ok(()) } else { self.newer(than, deadline).map(drop) }
    }

    /// Notes a reported move of a hash slot.
    pub fn moved(&self, hash_slot: u16, to: &Address) {
        if let Some(known) = &mut *locked(&self.known)
            && known.map.owner(hash_slot) != Some(to)
        {
            Arc::make_mut(&mut known.map).moved(hash_slot, to);
            known.changes += 1;
            known.changed = Some(Instant::now());
        }
    }

    /// Asks nodes in turn until most primaries have answered: a takeover needs the votes of most,
    /// so one of them knows of it. A node that was stopped for a while does not. Prefers the newest
    /// map.
    fn ask(&self, than: Option<&Known>, deadline: Instant) -> Result<Known, Problem> {
        let _one = locked(&self.asking);
        let before = locked(&self.known).clone();
        if let Some(before) = &before
            && than.is_none_or(|than| before.asked > than.asked)
        {
            return Ok(before.clone());
        }
        let newest = before.as_ref().map_or(0, |known| known.map.epoch());
        let mut places = self.places(before.as_ref().map(|known| &*known.map));
        let (mut best, mut answered, mut problem): (Option<Map>, Vec<Address>, Option<Problem>) = (None, Vec::new(), None);
        let mut next = 0;
        while let Some(address) = places.get(next).cloned() {
            next += 1;
            let until = if places.len() == 1 { deadline } else { deadline.min(self.soon()) };
            match self.map_of(&address, until) {
                Ok(map) if before.as_ref().is_some_and(|before| !map.is_of_one_cluster_with(&before.map)) => {
                    let why = Problem::Away("another server listens there now".to_owned());
                    problem = problem.or(Some(why.of(&address)));
                }
                Ok(map) => {
                    answered.push(address);
                    let others = map.nodes.iter().map(|node| &node.address);
                    let new: Vec<_> = others.filter(|place| !places.contains(place)).cloned().collect();
                    places.extend(new);
                    if best.as_ref().is_none_or(|best| best.epoch() < map.epoch()) {
                        best = Some(map);
                    }
                }
                Err(why) => problem = problem.or(Some(if places.len() == 1 { why } else { why.of(&address) })),
            }
            let is_known = best.as_ref().is_some_and(|best| best.epoch() >= newest && best.are_most_primaries(&answered));
            if is_known || Instant::now() >= deadline {
                break;
            }
        }
        // If most do not answer, the known map stays, as no node can take over. The same if most
        // have not heard of a takeover: asking the old primary would be worse than waiting.
        let may_be_right = |map: &Map| {
            let has_forgotten = || before.as_ref().is_some_and(|before| map.has_forgotten(&before.map));
            map.epoch() >= newest || map.are_most_primaries(&answered) && has_forgotten()
        };
        let has_answered = best.is_some();
        let Some(map) = best.filter(may_be_right) else {
            let nobody =
                if has_answered { "most of its nodes do not know what has become of it" } else { "it does not answer" };
            return Err(problem.unwrap_or_else(|| Problem::Away(nobody.to_owned())));
        };
        *locked(&self.names) = names(&map).collect();
        let mut now = locked(&self.known);
        let (asked, changes) = now.as_ref().map_or((0, 0), |known| (known.asked, known.changes));
        let is_new = now.as_ref().is_none_or(|known| !known.map.is_same(&map));
        self.counts.failovers.add(now.as_ref().map_or(0, |known| map.promoted_since(&known.map)) as u64);
        let changed = now.as_ref().and_then(|known| if is_new { Some(Instant::now()) } else { known.changed });
        let (since, changes) = (Instant::now(), changes + u64::from(is_new));
        let known = Known { map: Arc::new(map), asked: asked + 1, changes, since, changed };
        if is_new {
            // A node that the cluster has dropped has no slots to change.
            locked(&self.fences).retain(|fence| known.map.nodes.iter().any(|node| node.address == fence.address));
        }
        *now = Some(known.clone());
        Ok(known)
    }

    /// The nodes most likely to answer first; primaries, of which most must answer, before
    /// replicas.
    fn places(&self, map: Option<&Map>) -> Vec<Address> {
        let mut places: Vec<Address> = Vec::new();
        let known = map.filter(|map| map.is_cluster).into_iter().flat_map(|map| {
            let all = std::iter::once(&map.from).chain(map.nodes.iter().map(|node| &node.address));
            let is_down = |address: &Address| map.nodes.iter().any(|node| node.is_down && node.address == *address);
            let (mut up, down): (Vec<_>, Vec<_>) = all.partition(|address| !is_down(address) && !self.is_away(address));
            let is_primary =
                |address: &Address| map.nodes.iter().any(|node| node.primary.is_none() && node.address == *address);
            up.sort_by_key(|address| !is_primary(address));
            up.into_iter().chain(down)
        });
        for address in known.chain(&self.server.hosts) {
            if !places.contains(address) {
                places.push(address.clone());
            }
        }
        places
    }

    fn map_of(&self, address: &Address, deadline: Instant) -> Result<Map, Problem> {
        let mut link = self.connect(address, deadline)?;
        if !link.facts.cluster {
            return Ok(Map::single(address));
        }
        let nodes = cluster_nodes(&mut link)?;
        let map = Map::parse(&nodes, address)
            .ok_or_else(|| Problem::Refused("it does not say which node of its cluster has what".to_owned()))?;
        // Needed before the first map is accepted.
        if locked(&self.known).is_none() {
            locked(&self.names).extend(names(&map));
        }
        Ok(map)
    }

    /// Records a damaged copy at a node.
    pub fn harmed(&self, node: &Address, harm: Harm) {
        match harm {
            Harm::Lost => self.counts.copies_lost.add(1),
            Harm::Wrong => self.counts.copies_wrong.add(1),
        }
        self.told.tell(node, harm);
    }

    /// Examines all nodes that have slots, and their replicas.
    ///
    /// # Errors
    /// Why pages can't be trusted to them.
    pub fn survey(&self, deadline: Instant) -> Result<Survey, Problem> {
        let map = self.known(deadline)?.map;
        if !map.is_cluster && self.server.hosts.len() > 1 {
            return Err(Problem::Refused(format!("{} is no cluster: name it alone", map.from)));
        }
        if let Some(place) = &map.without_port {
            let (with, option) = if self.server.tls.is_some() { ("with", "tls-port") } else { ("without", "port") };
            return Err(Problem::Refused(format!("the node {place} of its cluster has no port {with} TLS ({option})")));
        }
        let uncovered = map.uncovered();
        if uncovered > 0 {
            return Err(Problem::Refused(format!(
                "{uncovered} of its cluster's 16384 slots have no node that works: `redis-cli --cluster check {}`",
                map.from
            )));
        }
        let mut primaries = Vec::new();
        for (node, slots) in map.primaries() {
            let about = |problem: Problem| if map.is_cluster { problem.of(&node.address) } else { problem };
            let facts = self.connect(&node.address, deadline).map_err(about)?.facts;
            if let Some(why) = facts.refusal() {
                return Err(about(Problem::Refused(why)));
            }
            primaries.push((node.address.clone(), slots as f64 / 16384.0, facts));
        }
        // A replica that is away does no harm now; a later connection checks it.
        for node in map.nodes.iter().filter(|node| node.primary.is_some() && !node.is_down) {
            let facts = self.connect(&node.address, deadline.min(self.soon())).map(|link| link.facts);
            if let Ok(Some(why)) = facts.map(|facts| Facts { replica: false, ..facts }.refusal()) {
                return Err(Problem::Refused(why).of(&format!("the replica {}", node.address)));
            }
        }
        Ok(Survey { map, primaries })
    }

    /// Marks a node as unreachable until [`Remote::look`] reaches it.
    pub fn set_away(&self, node: &Address) {
        let mut away = locked(&self.away);
        if !away.contains(node) {
            away.push(node.clone());
        }
    }

    /// Whether a node is marked as unreachable.
    pub fn is_away(&self, node: &Address) -> bool {
        locked(&self.away).contains(node)
    }

    /// Whether there is such a node.
    pub fn has_away(&self) -> bool {
        !locked(&self.away).is_empty()
    }

    /// Tries the unreachable nodes in turn, and forgets those without slots.
    pub fn look(&self) {
        let away = locked(&self.away).clone();
        if away.is_empty() {
            return;
        }
        let soon = || self.soon();
        // Without a newer answer the old map stays.
        let known = self.known(soon()).map(|known| self.newer(&known, soon()).unwrap_or(known));
        for node in away {
            let has_slots =
                known.as_ref().map_or(true, |known| known.map.primaries().iter().any(|(one, _)| one.address == node));
            let answers = || known.as_ref().is_ok_and(|known| self.connect_to_node(&node, &known.map, soon()).is_ok());
            if !has_slots || answers() {
                locked(&self.away).retain(|other| *other != node);
            }
        }
    }

    /// Abandons a connection, perhaps with commands under way. Late reads change nothing.
    pub fn give_up(&self, link: &Link) {
        self.counts.reconnects.add(1);
        if link.has_changes {
            let (process, address) = (link.facts.process.clone(), link.address.clone());
            locked(&self.fences).push(Fence { process, address, client: link.client, since: Instant::now() });
        }
    }

    /// Before a change: makes this server close the abandoned connections, and so drop their
    /// commands. (A restarted server has forgotten them. Another node of the cluster lacks the
    /// slots, and refuses late commands.)
    ///
    /// # Errors
    /// Those of the connection.
    pub fn fence(&self, link: &mut Link) -> io::Result<()> {
        let fences = locked(&self.fences).clone();
        for fence in fences {
            if fence.process != link.facts.process {
                // An earlier server process is gone with its commands. But a connection older than
                // the fence may itself lead to a process that is gone.
                if fence.address != link.address || link.made < fence.since {
                    continue;
                }
            } else {
                let client = fence.client.to_string();
                let mut out = Vec::new();
                resp::command(&mut out, &[b"CLIENT", b"KILL", b"ID", client.as_bytes()]);
                link.connection.send(&out)?;
                // Already closed is as good.
                if matches!(link.connection.reply()?, Reply::Error(text) if text.starts_with("NOPERM")) {
                    return Err(ErrorKind::PermissionDenied.into());
                }
            }
            locked(&self.fences).retain(|other| *other != fence);
        }
        Ok(())
    }
}

impl Survey {
    /// Describes the servers.
    pub fn name(&self) -> String {
        let name = self.primaries.first().map(|(_, _, facts)| facts.name.as_str()).unwrap_or_default();
        if !self.map.is_cluster {
            return name.to_owned();
        }
        let replicas = self.map.nodes.iter().filter(|node| node.primary.is_some()).count();
        format!("{name}, a cluster of {} primaries and {replicas} replicas", self.primaries.len())
    }

    /// Most bytes that they may use; 0: no limit.
    pub fn maxmemory(&self) -> u64 {
        let of_each = self.primaries.iter().map(|(_, _, facts)| facts.maxmemory);
        if of_each.clone().any(|bytes| bytes == 0) { 0 } else { of_each.sum() }
    }

    /// Free bytes for pages: they spread by slots, so the first full node is the end. Nodes without
    /// a limit share their machine's free memory. `copies`: of each page.
    pub fn free(&self, copies: u8) -> u64 {
        let parts: Vec<f64> = self.primaries.iter().map(|(_, part, _)| *part).collect();
        let free = self.primaries.iter().enumerate().map(|(i, (address, part, facts))| {
            let beside = self.map.nodes.iter().filter(|node| node.address.host == address.host).count().max(1);
            let free = if facts.maxmemory == 0 { facts.free() / beside as u64 } else { facts.free() };
            // Second copies of other nodes' pages, which spread over all nodes but that one.
            let others = parts.iter().enumerate().filter(|(other, _)| *other != i);
            let seconds: f64 = others.map(|(_, other)| other * part / (1.0 - other)).sum();
            (free as f64 / if copies > 1 { part + seconds } else { *part }) as u64
        });
        free.min().unwrap_or(0)
    }

    /// Whether all report their memory.
    pub fn says_memory(&self) -> bool {
        self.primaries.iter().all(|(_, _, facts)| facts.machine > 0 || facts.maxmemory > 0)
    }
}

fn names(map: &Map) -> impl Iterator<Item = (Address, String)> {
    map.nodes.iter().filter_map(|node| Some((node.address.clone(), node.name.clone()?)))
}

fn cluster_nodes(link: &mut Link) -> Result<String, Problem> {
    match asked(&mut link.connection, &[b"CLUSTER", b"NODES"])? {
        Reply::Bytes(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Reply::Error(text) if text.starts_with("NOPERM") => {
            Err(Problem::Refused("it does not let us ask for its cluster: allow CLUSTER NODES (ACL)".to_owned()))
        }
        _ => Err(Problem::Refused("it does not say which node of its cluster has what".to_owned())),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
