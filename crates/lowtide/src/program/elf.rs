//! The kind of an executable: just enough of ELF to know whether a library can be preloaded into
//! it.

use std::fs::File;
use std::os::unix::fs::FileExt;

#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not ELF: the first bytes decide (a script, or an unknown format).
    Other,
    /// ELF of this machine, dynamically linked.
    Dynamic(Dynamic),
    /// ELF of this machine without a loader: static, or static-pie.
    Static,
    /// ELF of this machine that is no program: a loader, or a library.
    NoProgram,
    /// ELF of another architecture, word size or byte order; the text names it.
    Foreign(String),
    /// Damaged or truncated.
    Broken(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Dynamic {
    /// Its loader (PT_INTERP).
    pub loader: Vec<u8>,
    /// The names of all its symbols and libraries (`.dynstr`), each NUL-terminated; empty if not
    /// found.
    pub names: Vec<u8>,
}

impl Dynamic {
    /// Whether `name` is a name or the end of one: linkers share the ends of names.
    pub fn names_end_with(&self, name: &str) -> bool {
        let wanted = [name.as_bytes(), b"\0"].concat();
        self.names.windows(wanted.len()).any(|part| part == wanted)
    }
}

struct Segment {
    offset: u64,
    address: u64,
    size: u64,
}

/// x86-64.
const MACHINE: u16 = 62;
const BYTE_ORDER: u8 = 1;
const EXEC: u16 = 2;
const DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;
/// Larger tables are ignored.
const MOST_NAMES: u64 = 64 << 20;
const MOST_DYNAMIC: u64 = 1 << 20;
const PHDR_SIZE: usize = 56;

/// The error is one of reading.
pub fn inspect(file: &File) -> std::io::Result<Kind> {
    let mut header = [0u8; 64];
    let n = read_up_to(file, &mut header, 0)?;
    if n < 4 || header[..4] != *b"\x7fELF" {
        return Ok(Kind::Other);
    }
    if n < header.len() {
        return Ok(Kind::Broken("its ELF header is cut off"));
    }
    let machine = if header[5] == 2 { u16::from_be_bytes([header[18], header[19]]) } else { half(&header, 18) };
    if header[4] != 2 || header[5] != BYTE_ORDER || machine != MACHINE {
        let bits = if header[4] == 1 { "32-bit" } else { "64-bit" };
        return Ok(Kind::Foreign(format!("{bits} {}", machine_name(machine))));
    }
    if ![EXEC, DYN].contains(&half(&header, 16)) {
        return Ok(Kind::Broken("it is an object file or a core dump, not a program"));
    }
    let (offset, size, count) = (quad(&header, 32), half(&header, 54), half(&header, 56));
    if usize::from(size) != PHDR_SIZE {
        return Ok(Kind::Broken("its program headers are damaged"));
    }
    let mut loader = None;
    let mut dynamic = None;
    let mut loads = Vec::new();
    let mut headers = vec![0u8; PHDR_SIZE * usize::from(count)];
    if offset.checked_add(headers.len() as u64).is_none() {
        return Ok(Kind::Broken("its program headers are damaged"));
    }
    if read_up_to(file, &mut headers, offset)? < headers.len() {
        return Ok(Kind::Broken("it is cut off"));
    }
    for phdr in headers.chunks_exact(PHDR_SIZE) {
        let segment = Segment { offset: quad(phdr, 8), address: quad(phdr, 16), size: quad(phdr, 32) };
        match word(phdr, 0) {
            PT_LOAD => loads.push(segment),
            PT_DYNAMIC => dynamic = Some(segment),
            PT_INTERP if loader.is_none() => loader = Some(segment),
            _ => {}
        }
    }
    let Some(loader) = loader else {
        let is_program = match &dynamic {
            _ if half(&header, 16) == EXEC => true,
            Some(dynamic) => says_program(file, dynamic)?,
            None => false,
        };
        return Ok(if is_program { Kind::Static } else { Kind::NoProgram });
    };
    if !(2..=4096).contains(&loader.size) {
        return Ok(Kind::Broken("the name of its loader is damaged"));
    }
    let Some(mut loader) = read_all(file, loader.offset, loader.size)? else { return Ok(Kind::Broken("it is cut off")) };
    loader.truncate(loader.iter().position(|&b| b == 0).unwrap_or(loader.len()));
    let names = match dynamic {
        Some(dynamic) => names(file, &dynamic, &loads)?,
        None => None,
    };
    Ok(Kind::Dynamic(Dynamic { loader, names: names.unwrap_or_default() }))
}

/// Whether the dynamic section marks the file as a program.
fn says_program(file: &File, dynamic: &Segment) -> std::io::Result<bool> {
    let Some(entries) = read_all(file, dynamic.offset, dynamic.size.min(MOST_DYNAMIC))? else { return Ok(false) };
    let flags = entries.chunks_exact(16).find(|entry| quad(entry, 0) == DT_FLAGS_1).map_or(0, |entry| quad(entry, 8));
    Ok(flags & DF_1_PIE != 0)
}

/// The table of names that the dynamic section points to.
fn names(file: &File, dynamic: &Segment, loads: &[Segment]) -> std::io::Result<Option<Vec<u8>>> {
    let Some(entries) = read_all(file, dynamic.offset, dynamic.size.min(MOST_DYNAMIC))? else { return Ok(None) };
    let value = |tag| entries.chunks_exact(16).find(|entry| quad(entry, 0) == tag).map(|entry| quad(entry, 8));
    let (Some(address), Some(size)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return Ok(None) };
    let holds = |load: &&Segment| address.checked_sub(load.address).is_some_and(|into| into < load.size);
    let Some(load) = loads.iter().find(holds) else { return Ok(None) };
    read_all(file, load.offset.saturating_add(address - load.address), size.min(MOST_NAMES))
}

/// None if the file has fewer bytes.
fn read_all(file: &File, at: u64, size: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; size as usize];
    let n = read_up_to(file, &mut bytes, at)?;
    Ok((n == bytes.len()).then_some(bytes))
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Offsets from a damaged header.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn quad(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86 (i386)".to_owned(),
        8 => "MIPS".to_owned(),
        20 | 21 => "PowerPC".to_owned(),
        22 => "s390x".to_owned(),
        40 => "ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "AArch64".to_owned(),
        243 => "RISC-V".to_owned(),
        258 => "LoongArch".to_owned(),
        other => format!("machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn of(bytes: &[u8]) -> Kind {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        inspect(&file).unwrap()
    }

    fn elf(class: u8, machine: u16, kind: u16, phdrs: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&phdrs.to_le_bytes());
        bytes
    }

    #[test]
    fn kinds() {
        assert_eq!(of(b""), Kind::Other);
        assert_eq!(of(b"#!/bin/sh\n"), Kind::Other);
        assert!(matches!(of(b"\x7fELF"), Kind::Broken(_)));
        assert_eq!(of(&elf(2, MACHINE, DYN, 0)), Kind::NoProgram);
        assert_eq!(of(&elf(2, MACHINE, EXEC, 0)), Kind::Static);
        assert!(matches!(of(&elf(2, MACHINE, 1, 0)), Kind::Broken(_)));
        assert!(matches!(of(&elf(2, MACHINE, EXEC, 3)), Kind::Broken(_)));
        assert_eq!(of(&elf(1, 3, EXEC, 0)), Kind::Foreign("32-bit x86 (i386)".to_owned()));
        assert_eq!(of(&elf(2, 243, EXEC, 0)), Kind::Foreign("64-bit RISC-V".to_owned()));
    }

    #[test]
    fn the_loader_is_found() {
        let mut bytes = elf(2, MACHINE, DYN, 1);
        let mut phdr = [0u8; 56];
        phdr[0] = 3;
        phdr[8..16].copy_from_slice(&120u64.to_le_bytes());
        phdr[32..40].copy_from_slice(&6u64.to_le_bytes());
        bytes.extend(phdr);
        bytes.extend(b"/ld/x\0");
        assert_eq!(of(&bytes), Kind::Dynamic(Dynamic { loader: b"/ld/x".to_vec(), names: Vec::new() }));
        bytes[64 + 8..64 + 16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(of(&bytes), Kind::Broken(_)));
    }

    #[test]
    fn this_test_is_dynamic() {
        let file = File::open("/proc/self/exe").unwrap();
        let Kind::Dynamic(found) = inspect(&file).unwrap() else { panic!("not dynamic") };
        assert!(found.names_end_with("libc.so.6") && found.names_end_with("malloc"), "its names were not found");
        assert!(!found.names_end_with("__asan_init") && !found.names_end_with("mallo"));
    }
}
