//! The loader's mapped objects and their symbols.
//!
//! The C library's calls are slow: `dladdr` compares an address with all symbols, and a failed
//! `dlsym` writes its message with malloc. This uses the object's own hash table, without locks or
//! malloc.

use core::ffi::{CStr, c_char, c_int, c_void};

use lowtide_core::vm::PAGE_SIZE;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const SHN_UNDEF: u16 = 0;

#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: usize,
    physical: usize,
    file_size: usize,
    memory_size: usize,
    align: usize,
}

#[repr(C)]
struct Info {
    base: usize,
    name: *const c_char,
    headers: *const Header,
    count: u16,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

#[link(name = "c")]
unsafe extern "C" {
    fn dl_iterate_phdr(each: extern "C" fn(&Info, usize, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
}

/// An object that stays mapped.
#[derive(Clone, Copy)]
pub struct Object {
    name: &'static CStr,
    base: usize,
    start: usize,
    end: usize,
    hash: usize,
    symbols: usize,
    strings: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub at: usize,
    pub size: usize,
}

/// The first match in the loader's search order.
pub fn find(mut is_it: impl FnMut(&Object) -> bool) -> Option<Object> {
    struct Search<'a> {
        is_it: &'a mut dyn FnMut(&Object) -> bool,
        found: Option<Object>,
    }
    extern "C" fn each(info: &Info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the search below, not used elsewhere meanwhile.
        let search = unsafe { &mut *search.cast::<Search<'_>>() };
        let object = Object::new(info);
        if (search.is_it)(&object) {
            search.found = Some(object);
        }
        search.found.is_some().into()
    }
    let mut search = Search { is_it: &mut is_it, found: None };
    // SAFETY: `each` gets this pointer, and only before this returns.
    unsafe { dl_iterate_phdr(each, (&raw mut search).cast()) };
    search.found
}

pub fn c_library() -> Option<Object> {
    find(|object| {
        let file = object.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        file.starts_with(b"libc.so") && object.symbol(c"memcpy").is_some()
    })
}

/// musl's C library, which is its loader too.
pub fn musl() -> Option<Object> {
    find(|object| {
        let file = object.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        file.starts_with(b"ld-musl")
    })
}

impl Object {
    fn new(info: &Info) -> Object {
        // SAFETY: the loader keeps both while the object is mapped; objects loaded with the program
        // stay.
        let (name, headers) = unsafe {
            let name = if info.name.is_null() { c"" } else { CStr::from_ptr(info.name) };
            let headers = match info.count {
                0 => &[][..],
                count => core::slice::from_raw_parts(info.headers, count.into()),
            };
            (name, headers)
        };
        let (start, end) = headers.iter().filter(|h| h.kind == PT_LOAD).fold((usize::MAX, 0), |(start, end), h| {
            let at = info.base.wrapping_add(h.address);
            (start.min(at), end.max(at + h.memory_size))
        });
        let mut this = Object {
            name,
            base: info.base,
            start: start & !(PAGE_SIZE - 1),
            end: end.next_multiple_of(PAGE_SIZE),
            hash: 0,
            symbols: 0,
            strings: 0,
        };
        if let Some(dynamic) = headers.iter().find(|h| h.kind == PT_DYNAMIC) {
            this.read_dynamic(info.base.wrapping_add(dynamic.address) as *const [usize; 2]);
        }
        this
    }

    fn read_dynamic(&mut self, mut at: *const [usize; 2]) {
        loop {
            // SAFETY: the loader has read this section; DT_NULL ends it.
            let [tag, value] = unsafe { at.read() };
            // The loader relocates addresses, except in the vDSO, which it can't write.
            let address = if value < self.base { self.base + value } else { value };
            match tag {
                DT_NULL => return,
                DT_GNU_HASH => self.hash = address,
                DT_SYMTAB => self.symbols = address,
                DT_STRTAB => self.strings = address,
                _ => {}
            }
            // SAFETY: as above: not the last entry.
            at = unsafe { at.add(1) };
        }
    }

    pub fn range(&self) -> (usize, usize) {
        (self.start, self.end)
    }

    /// Finds a symbol of any version. None: undefined here, or no DT_GNU_HASH.
    pub fn symbol(&self, name: &CStr) -> Option<Found> {
        if self.hash == 0 || self.symbols == 0 || self.strings == 0 {
            return None;
        }
        let hash = name.to_bytes().iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let table = self.hash as *const u32;
        // SAFETY: the layout of DT_GNU_HASH, which the loader uses too: number of buckets, first
        // symbol, number of filter words, shift; the filter, the buckets, and a word for each
        // symbol, odd for the last of a bucket.
        unsafe {
            let [buckets, first, words, shift] = table.cast::<[u32; 4]>().read();
            if buckets == 0 || words == 0 {
                return None;
            }
            let filter = table.add(4).cast::<u64>();
            let word = filter.add((hash / 64 % words) as usize).read_unaligned();
            if word >> (hash % 64) & word >> ((hash >> shift) % 64) & 1 == 0 {
                return None;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((hash % buckets) as usize).read();
            if index < first {
                return None;
            }
            loop {
                let other = chain.add((index - first) as usize).read();
                if other | 1 == hash | 1 {
                    let symbol = &*(self.symbols as *const Symbol).add(index as usize);
                    let its_name = CStr::from_ptr((self.strings as *const c_char).add(symbol.name as usize));
                    if symbol.section != SHN_UNDEF && its_name == name {
                        return Some(Found { at: self.base.wrapping_add(symbol.value), size: symbol.size });
                    }
                }
                if other & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }
}
