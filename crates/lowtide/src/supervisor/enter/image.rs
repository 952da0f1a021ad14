//! The agent's file as a loader sees it: its mappings, its relocations for a chosen address, and
//! its entry. Symbols of the C library stay unresolved: the agent uses none of them when it enters
//! this way.

use linux_raw_sys::general as sys;
use object::elf::{
    FileHeader64, PF_R, PF_W, PF_X, PT_GNU_RELRO, PT_LOAD, ProgramFlags, R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT,
    R_X86_64_RELATIVE,
};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget};

const PAGE: u64 = 4096;
const ENTRY: &str = "lowtide_enter";

/// Whole pages with one mapping, relative to the image's beginning.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub start: u64,
    pub len: u64,
    /// Bytes from the start that come from the file, at `offset`; the rest is zero.
    pub of_file: u64,
    pub offset: u64,
    pub protection: u32,
}

#[derive(Debug)]
pub struct Image {
    /// Bytes of address space.
    pub span: u64,
    pub parts: Vec<Part>,
    /// Start and length of the part that is read-only after relocation.
    pub constant: Option<(u64, u64)>,
    pub entry: u64,
    /// Contents of the writable parts, by where they begin.
    data: Vec<(u64, Vec<u8>)>,
    relocations: Vec<(u64, Value)>,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    /// Relative to the image's beginning.
    Address(u64),
    /// An undefined symbol.
    Nothing,
}

impl Image {
    /// Lays out a shared object.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn of(file: &[u8]) -> Result<Image, String> {
        let elf = ElfFile64::<LittleEndian>::parse(file).map_err(|error| error.to_string())?;
        let (mut parts, mut data, mut constant, mut span) = (Vec::new(), Vec::new(), None, 0);
        let little = LittleEndian;
        let headers =
            FileHeader64::<LittleEndian>::program_headers(elf.elf_header(), little, file).map_err(|e| e.to_string())?;
        for header in headers {
            let (address, len) = (header.p_vaddr(little), header.p_memsz(little));
            let (start, end) = (address & !(PAGE - 1), (address + len).next_multiple_of(PAGE));
            match header.p_type(little) {
                PT_LOAD => {
                    let (offset, in_file) = (header.p_offset(little), header.p_filesz(little));
                    let flags: ProgramFlags = header.p_flags(little);
                    let flag = |flag, protection| if (flags & flag).0 == 0 { 0 } else { protection };
                    let protection = flag(PF_R, sys::PROT_READ) | flag(PF_W, sys::PROT_WRITE) | flag(PF_X, sys::PROT_EXEC);
                    // Up to the end of the last page that has bytes of the file.
                    let of_file = if in_file == 0 { 0 } else { (address + in_file).next_multiple_of(PAGE) - start };
                    parts.push(Part { start, len: end - start, of_file, offset: offset & !(PAGE - 1), protection });
                    span = span.max(end);
                    if (flags & PF_W).0 != 0 {
                        let bytes = header.data(little, file).map_err(|()| "a part is cut off")?;
                        let mut bytes = bytes.to_vec();
                        // The rest of that page in the file belongs to other segments.
                        bytes.resize((start + of_file).saturating_sub(address) as usize, 0);
                        data.push((address, bytes));
                    }
                }
                // Rounds down to whole pages: the rest stays writable.
                PT_GNU_RELRO => constant = Some((start, ((address + len) & !(PAGE - 1)) - start)),
                _ => {}
            }
        }
        let symbols = elf.dynamic_symbol_table().ok_or("it has no symbols")?;
        let entry = symbols.symbols().find(|symbol| symbol.name() == Ok(ENTRY)).ok_or("it has no entry")?.address();
        let relocations = elf.dynamic_relocations().ok_or("it has no relocations")?;
        let relocations = relocations.map(|(at, relocation)| {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return Err("it is no ELF file".to_owned()) };
            let addend = relocation.addend() as u64;
            let value = match (r_type, relocation.target()) {
                (R_X86_64_RELATIVE, _) => Value::Address(addend),
                (R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT, RelocationTarget::Symbol(index)) => {
                    let symbol = symbols.symbol_by_index(index).map_err(|error| error.to_string())?;
                    if symbol.is_undefined() { Value::Nothing } else { Value::Address(symbol.address() + addend) }
                }
                _ => return Err(format!("relocations of type {r_type} are not known")),
            };
            Ok((at, value))
        });
        let relocations = relocations.collect::<Result<_, String>>()?;
        Ok(Image { span, parts, constant, entry, data, relocations })
    }

    /// Addresses and bytes of the agent's data for an image at `base`.
    pub fn relocated(&self, base: u64) -> Vec<(u64, Vec<u8>)> {
        let mut data = self.data.clone();
        for (at, value) in &self.relocations {
            let word = match value {
                Value::Address(address) => base + address,
                Value::Nothing => 0,
            };
            for (start, bytes) in &mut data {
                if let Some(to) = at.checked_sub(*start).and_then(|from| bytes.get_mut(from as usize..from as usize + 8)) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        data.into_iter().map(|(start, bytes)| (base + start, bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::shared_memory::AGENT;

    #[test]
    fn the_agent_is_laid_out_and_each_word_of_it_found() {
        let image = Image::of(AGENT).unwrap();
        assert!(image.parts.iter().all(|part| part.start + part.len <= image.span && part.of_file <= part.len));
        assert!(image.parts.windows(2).all(|pair| pair[0].start + pair[0].len <= pair[1].start), "{:?}", image.parts);
        let code = image.parts.iter().find(|part| part.protection & sys::PROT_EXEC != 0).unwrap();
        assert!((code.start..code.start + code.len).contains(&image.entry));
        let place = |at: &u64| image.data.iter().any(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&(at + 7)));
        assert!(image.relocations.iter().all(|(at, _)| place(at)), "a relocation is outside of what is written");
        assert!(image.relocations.len() > 100);
        let (start, len) = image.constant.unwrap();
        assert!(len > 0 && start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE));
        let base = 0x7f00_0000_0000;
        let moved = image.relocated(base);
        let words = |data: &[(u64, Vec<u8>)], base| {
            let all = data.iter().flat_map(|(_, bytes)| bytes.chunks_exact(8));
            all.filter(|word| (base..base + image.span).contains(&u64::from_le_bytes((*word).try_into().unwrap()))).count()
        };
        assert!(words(&moved, base) >= 100, "addresses are written");
    }

    #[test]
    fn what_is_no_agent_is_refused() {
        assert!(Image::of(b"").is_err() && Image::of(&AGENT[..1000]).is_err());
        assert!(Image::of(&std::fs::read("/proc/self/exe").unwrap()).is_err());
    }
}
