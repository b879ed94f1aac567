//! Loads the BPF program, and uses its maps. The layouts of keys and records in this file and in hook.c must be equal.

#![allow(
    clippy::disallowed_methods,
    reason = "opens a control group, and binds a socket to show its network namespace"
)]

use std::{
    collections::{BTreeMap, HashSet, hash_map::RandomState},
    fmt,
    fs::File,
    hash::BuildHasher as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use aya::{
    Ebpf, EbpfError,
    maps::{Array, HashMap as Map, MapData, MapError, RingBuf},
    programs::{CgroupAttachMode, CgroupSockAddr, ProgramError},
    sys::SyscallError,
};
use nix::{
    errno::Errno,
    sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs},
    time::{ClockId, clock_gettime},
};

use crate::{Answer, Bind, Claim, ClaimId, Exempt, MapFailed, Mode, NotAttached, Protocol, Refusal, Who, mapped};

pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hook.o"));

// The indexes of the values in the map `STATE`.
const NAMESPACE: u32 = 0;
const NONCE: u32 = 1;
const FRESH_UNTIL: u32 = 2;
const REFUSES: u32 = 3;
const GENERATION: u32 = 4;
const LOST: u32 = 5;

/// If this bit is set in a claim's number, the hook never refuses binds of the claim.
const NEVER_REFUSED: u32 = 1 << 31;

/// The error with which the hook refuses a bind, and the names of the programs for IPv4 and IPv6.
pub(crate) type Variant = (Refusal, [&'static str; 2]);
/// The best variant comes first.
const VARIANTS: [Variant; 3] = [
    (Refusal::AddressInUse, ["bind4_in_use", "bind6_in_use"]),
    (Refusal::AddressInUse, ["bind4_unnamed", "bind6_unnamed"]),
    (Refusal::NotPermitted, ["bind4", "bind6"]),
];

/// The key of a claim: the generation, the port, the protocol, a flag, and the address. The flag is 1 in a key for
/// binds of the wildcard address.
type ClaimKey = [u8; 24];
/// The key of an exemption: the id of the process or group, the kind of the id, and the claim.
type ExemptKey = [u8; 16];

/// An attached hook. The hook ends when the value is dropped. The hook also ends with its process, because nothing of
/// the hook is pinned in the file system.
pub struct Hook {
    refusal: Option<Refusal>,
    state: Array<MapData, u64>,
    claims: Map<MapData, ClaimKey, u32>,
    exempt: Map<MapData, ExemptKey, u32>,
    binds: RingBuf<MapData>,
    /// The claims in the kernel, without their generation.
    known: BTreeMap<[u8; 20], u32>,
    generation: u32,
    /// When this value is dropped, the links of the programs end.
    _programs: Ebpf,
}

impl fmt::Debug for Hook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Hook")
            .field("refusal", &self.refusal)
            .field("claims", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl Hook {
    /// Attaches the hook to a control group of version 2, for the network namespace of this thread. This process must
    /// be in the group or below it. At first, the hook has no claims.
    pub fn attach(cgroup: &Path, mode: Mode) -> Result<Self, NotAttached> {
        Self::attach_with(cgroup, mode, &VARIANTS)
    }

    pub(crate) fn attach_with(cgroup: &Path, mode: Mode, variants: &[Variant]) -> Result<Self, NotAttached> {
        let unreadable = |error| NotAttached::Unreadable { path: cgroup.to_owned(), error };
        let group = File::open(cgroup).map_err(unreadable)?;
        let system = fstatfs(&group).map_err(|error| unreadable(error.into()))?;
        if system.filesystem_type() != CGROUP2_SUPER_MAGIC {
            return Err(NotAttached::NoCgroup(cgroup.to_owned()));
        }
        let mut programs = Ebpf::load(OBJECT).map_err(|error| not_loaded(&error))?;
        let mut refusal = Err(NotAttached::NotPermitted);
        for (with, names) in variants {
            refusal = attach_variant(&mut programs, &group, names).map(|()| *with);
            // If the kernel may accept this variant later, the hook does not fall back to a worse variant.
            if refusal.as_ref().err().is_none_or(NotAttached::can_pass) {
                break;
            }
        }
        let refusal = refusal?;
        let mut hook = Self {
            refusal: (mode == Mode::Refuse).then_some(refusal),
            state: map_of(&mut programs, "STATE")?,
            claims: map_of(&mut programs, "CLAIMS")?,
            exempt: map_of(&mut programs, "EXEMPT")?,
            binds: map_of(&mut programs, "BINDS")?,
            known: BTreeMap::new(),
            generation: 0,
            _programs: programs,
        };
        let failed = |error: MapFailed| NotAttached::Unsupported { lacks: "no map", error: error.to_string() };
        hook.show_namespace().map_err(failed)?;
        if hook.state(NAMESPACE).map_err(failed)? == 0 {
            return Err(NotAttached::Elsewhere(cgroup.to_owned()));
        }
        hook.set(REFUSES, u64::from(mode == Mode::Refuse)).map_err(failed)?;
        Ok(hook)
    }

    /// Calls `bind` with an address that other processes cannot guess. From this call, the BPF program learns the
    /// network namespace of this thread. The address is reserved, so the `bind` fails after the program has seen it.
    fn show_namespace(&mut self) -> Result<(), MapFailed> {
        let random = RandomState::new().hash_one(());
        let [a, b, c, d, e, f, ..] = random.to_be_bytes();
        let address = Ipv4Addr::new(a | 0xf0, b, c, d);
        let port = u16::from_be_bytes([e, f]).max(1);
        self.set(NONCE, u64::from(u32::from(address)) << 16 | u64::from(port))?;
        drop(UdpSocket::bind((address, port)));
        self.set(NONCE, 0)
    }

    /// The error that a refused `bind` returns, if the mode is [`Mode::Refuse`].
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Replaces all claims in one step. The BPF program compares each `bind` with one complete set of claims: the old
    /// set or the new set. If two claims have the same address, the first claim is used.
    pub(crate) fn claims(&mut self, claims: &[Claim]) -> Result<(), MapFailed> {
        let mut wanted = BTreeMap::new();
        for claim in claims {
            let ClaimId(id) = claim.id;
            if id == 0 || id >= NEVER_REFUSED {
                let error = format!("{} has the id {id}, wanted 1 to {}", claim.at, NEVER_REFUSED - 1);
                return Err(MapFailed { map: "claims", error });
            }
            let id = if claim.is_refused { id } else { id | NEVER_REFUSED };
            let wildcard = match claim.at.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            wanted.entry(claim_key(claim, false, claim.at.ip())).or_insert(id);
            // The BPF program looks up this key when a process binds the wildcard address.
            wanted.entry(claim_key(claim, true, wildcard)).or_insert(id);
        }
        if wanted == self.known {
            return Ok(());
        }
        let next = self.generation.wrapping_add(1);
        let with = |generation: u32, key: &[u8; 20]| {
            let mut whole = [0; 24];
            whole[..4].copy_from_slice(&generation.to_ne_bytes());
            whole[4..].copy_from_slice(key);
            whole
        };
        for (key, id) in &wanted {
            if let Err(error) = self.claims.insert(with(next, key), id, 0) {
                // Removes the new claims that were written. All old claims stay in force.
                for key in wanted.keys() {
                    self.claims.remove(&with(next, key)).ok();
                }
                return Err(failed("claims")(error));
            }
        }
        self.set(GENERATION, u64::from(next))?;
        let before = std::mem::replace(&mut self.known, wanted);
        let generation = std::mem::replace(&mut self.generation, next);
        before.keys().try_for_each(|key| self.claims.remove(&with(generation, key))).map_err(failed("claims"))
    }

    /// Adds the new exemptions, replaces all claims, and then removes the old exemptions.
    pub fn replace(&mut self, exempt: &[Exempt], claims: &[Claim]) -> Result<(), MapFailed> {
        let wanted: HashSet<ExemptKey> = exempt.iter().map(exempt_key).collect();
        wanted.iter().try_for_each(|key| self.exempt.insert(key, 1, 0)).map_err(failed("exemptions"))?;
        self.claims(claims)?;
        let all: Vec<ExemptKey> = self.exempt.keys().collect::<Result<_, _>>().map_err(failed("exemptions"))?;
        let gone = all.iter().filter(|key| !wanted.contains(*key));
        gone.into_iter().try_for_each(|key| self.exempt.remove(key)).map_err(failed("exemptions"))
    }

    /// Declares the claims fresh for `time`. After `time` without another call, the hook refuses nothing, even if this
    /// process hangs. Before the first call, the hook refuses nothing.
    pub fn fresh_for(&mut self, time: Duration) -> Result<(), MapFailed> {
        let clock = |error: Errno| MapFailed { map: "state", error: error.to_string() };
        let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(clock)?);
        self.set(FRESH_UNTIL, u64::try_from((now + time).as_nanos()).unwrap_or(u64::MAX))
    }

    /// The next reported `bind` of a claimed port, or `None` if there is no report now. To wait, poll the descriptor.
    #[expect(clippy::should_implement_trait, reason = "there may be a next one later")]
    pub fn next(&mut self) -> Option<Bind> {
        loop {
            let record = self.binds.next()?;
            if let Some(bind) = bind(&record) {
                return Some(bind);
            }
        }
    }

    /// The number of `bind` calls that the hook could not report, because the reader had not taken the earlier reports.
    pub fn lost(&self) -> Result<u64, MapFailed> {
        self.state(LOST)
    }

    fn state(&self, of: u32) -> Result<u64, MapFailed> {
        self.state.get(&of, 0).map_err(failed("state"))
    }

    fn set(&mut self, of: u32, value: u64) -> Result<(), MapFailed> {
        self.state.set(of, value, 0).map_err(failed("state"))
    }
}

impl AsFd for Hook {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.binds.as_fd()
    }
}

fn failed(map: &'static str) -> impl Fn(MapError) -> MapFailed {
    move |error| MapFailed { map, error: error.to_string() }
}

/// Explains why the maps or the program could not be loaded. If the kernel has BPF, only the ring buffer can be
/// missing, which needs Linux 5.8.
pub(crate) fn not_loaded(error: &EbpfError) -> NotAttached {
    let errno = if let EbpfError::MapError(map) = error { errno_of_map(map) } else { None };
    let is_bpf_there = matches!(error, EbpfError::MapError(_)) && errno != Some(Errno::ENOSYS as i32);
    lacking(if is_bpf_there { "no ring buffer" } else { "no BPF" }, errno, error)
}

pub(crate) fn lacking(lacks: &'static str, errno: Option<i32>, error: &dyn fmt::Display) -> NotAttached {
    match errno.map(Errno::from_raw) {
        Some(Errno::EPERM) => NotAttached::NotPermitted,
        Some(Errno::EAGAIN | Errno::EBUSY | Errno::ENOMEM) => {
            NotAttached::NotNow { why: lacks, error: in_one_line(errno, error) }
        }
        _ => NotAttached::Unsupported { lacks, error: in_one_line(errno, error) },
    }
}

/// Here, `EPERM` does not mean that the process lacks rights. If the process lacked rights, the kernel would have
/// refused to load the programs (kernel/bpf/cgroup.c).
pub(crate) fn not_linked(errno: Option<i32>, error: &dyn fmt::Display) -> NotAttached {
    let why = match errno.map(Errno::from_raw) {
        Some(Errno::E2BIG) => "the control group has as many programs as a kernel permits",
        Some(Errno::EPERM) => "a program of the control group, or of one above, permits no other program",
        _ => return lacking("no link to a control group", errno, error),
    };
    NotAttached::NotNow { why, error: in_one_line(errno, error) }
}

/// Finds the cause in the verifier's log. The log has one line for each instruction, then the cause, and then figures.
fn in_one_line(errno: Option<i32>, error: &dyn fmt::Display) -> String {
    let error = error.to_string();
    let (what, log) = error.split_once(" Verifier output: ").unwrap_or((&error, ""));
    let is_number =
        |line: &str| ["verification time", "stack depth", "processed"].iter().any(|it| line.starts_with(it));
    let cause = log.lines().rfind(|line| !line.is_empty() && !is_number(line)).unwrap_or_default();
    let parts = [what.lines().next().unwrap_or_default(), cause].into_iter().filter(|part| !part.is_empty());
    let parts = parts.map(str::to_owned).chain(errno.map(|errno| Errno::from_raw(errno).to_string()));
    parts.collect::<Vec<_>>().join(": ")
}

fn errno_of_map(error: &MapError) -> Option<i32> {
    match error {
        MapError::CreateError { io_error, .. } | MapError::SyscallError(SyscallError { io_error, .. }) => {
            io_error.raw_os_error()
        }
        _ => None,
    }
}

fn map_of<M: TryFrom<aya::maps::Map, Error = MapError>>(programs: &mut Ebpf, name: &str) -> Result<M, NotAttached> {
    let map = programs.take_map(name).ok_or_else(|| lacking("no map of this name", None, &name))?;
    M::try_from(map).map_err(|error| lacking("no map of this kind", errno_of_map(&error), &error))
}

fn attach_variant(programs: &mut Ebpf, group: &File, names: &[&'static str; 2]) -> Result<(), NotAttached> {
    for is_loaded in [false, true] {
        for name in names {
            let program = programs.program_mut(name).ok_or_else(|| lacking("no program of this name", None, &name))?;
            let program: &mut CgroupSockAddr =
                program.try_into().map_err(|error: ProgramError| lacking("no program of this kind", None, &error))?;
            // The kernel keeps the existing links of the group when it adds a link. The kernel accepts no flags for a
            // link: `Single` means no flags.
            let done = match is_loaded {
                false => program.load(),
                true => program.attach(group, CgroupAttachMode::Single).map(drop),
            };
            done.map_err(|error| {
                let errno = match &error {
                    ProgramError::LoadError { io_error, .. }
                    | ProgramError::SyscallError(SyscallError { io_error, .. }) => io_error.raw_os_error(),
                    _ => None,
                };
                if is_loaded { not_linked(errno, &error) } else { lacking("the program was refused", errno, &error) }
            })?;
        }
    }
    Ok(())
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

fn claim_key(claim: &Claim, is_some: bool, address: IpAddr) -> [u8; 20] {
    let mut key = [0; 20];
    key[..2].copy_from_slice(&claim.at.port().to_ne_bytes());
    key[2] = number(claim.protocol);
    key[3] = u8::from(is_some);
    key[4..].copy_from_slice(&mapped(address));
    key
}

fn exempt_key(exempt: &Exempt) -> ExemptKey {
    let (id, kind): (u64, u32) = match exempt.who {
        Who::Cgroup(id) => (id, 0),
        Who::Process(id) => (id.into(), 1),
    };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.to_ne_bytes());
    key[8..12].copy_from_slice(&kind.to_ne_bytes());
    key[12..].copy_from_slice(&exempt.claim.map_or(0, |claim| claim.0).to_ne_bytes());
    key
}

/// Parses a record of the hook. `None` if the record is too short, or if its protocol or answer is unknown.
fn bind(record: &[u8]) -> Option<Bind> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let port = u16::from_ne_bytes(record.get(20..22)?.try_into().ok()?);
    let address: [u8; 16] = record.get(24..40)?.try_into().ok()?;
    let name = record.get(40..56)?.split(|byte| *byte == 0).next()?;
    Some(Bind {
        cgroup: u64::from_ne_bytes(record.get(..8)?.try_into().ok()?),
        pid: u32_at(8)?,
        uid: u32_at(12)?,
        claim: ClaimId(u32_at(16)?),
        protocol: [Protocol::Tcp, Protocol::Udp]
            .into_iter()
            .find(|protocol| Some(&number(*protocol)) == record.get(22))?,
        at: SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port),
        name: String::from_utf8_lossy(name).into_owned(),
        answer: match record.get(23)? {
            0 => Answer::Allowed,
            1 => Answer::Refused,
            2 => Answer::TooOld,
            _ => Answer::FamilyUnknown,
        },
    })
}
