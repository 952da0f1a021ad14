//! The objects that the loader has mapped, and where their symbols are.
//!
//! What the C library offers for this takes its time in every process of a run, be it as short as it may: `dladdr` compares an
//! address with all symbols of an object, and a `dlsym` that finds nothing writes its error message, with malloc. Here a name
//! is looked up in the object's own hash table, without locks and without malloc.

use core::ffi::{CStr, c_char, c_int, c_void};

use lowtide_core::vm::PAGE_SIZE;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
/// The section of symbols that are used and not defined.
const SHN_UNDEF: u16 = 0;

/// The kernel's and the loader's `Elf64_Phdr`.
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

/// The beginning of the C library's `struct dl_phdr_info`.
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

/// A symbol of an object that defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its address.
    pub at: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// The first object, in the order in which the loader searches them, of which `is_it` holds.
pub fn find(mut is_it: impl FnMut(&Object) -> bool) -> Option<Object> {
    struct Search<'a> {
        is_it: &'a mut dyn FnMut(&Object) -> bool,
        found: Option<Object>,
    }
    extern "C" fn each(info: &Info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the search below, which nobody else uses meanwhile.
        let search = unsafe { &mut *search.cast::<Search<'_>>() };
        let object = Object::new(info);
        if (search.is_it)(&object) {
            search.found = Some(object);
        }
        search.found.is_some().into()
    }
    let mut search = Search { is_it: &mut is_it, found: None };
    // SAFETY: `each` is called with the pointer that is passed here, and only before this returns.
    unsafe { dl_iterate_phdr(each, (&raw mut search).cast()) };
    search.found
}

/// The C library.
pub fn c_library() -> Option<Object> {
    find(|object| {
        let file = object.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        file.starts_with(b"libc.so") && object.symbol(c"memcpy").is_some()
    })
}

/// The C library, if it is musl: it is its loader, too.
pub fn musl() -> Option<Object> {
    find(|object| {
        let file = object.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        file.starts_with(b"ld-musl")
    })
}

impl Object {
    fn new(info: &Info) -> Object {
        // SAFETY: the loader keeps both as long as the object is mapped. Those that are looked at here were loaded with the
        // program, and are never unmapped.
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
            // SAFETY: the dynamic section ends with DT_NULL, and the loader has read it.
            let [tag, value] = unsafe { at.read() };
            // The loader writes addresses there, but not where it can't write (the kernel's own object).
            let address = if value < self.base { self.base + value } else { value };
            match tag {
                DT_NULL => return,
                DT_GNU_HASH => self.hash = address,
                DT_SYMTAB => self.symbols = address,
                DT_STRTAB => self.strings = address,
                _ => {}
            }
            // SAFETY: as above, this was not the last one.
            at = unsafe { at.add(1) };
        }
    }

    /// Its addresses, from the first to behind the last, zero-initialised data included.
    pub fn range(&self) -> (usize, usize) {
        (self.start, self.end)
    }

    /// Where it defines a symbol, of whatever version. None: it does not, or has no hash table of the usual kind.
    pub fn symbol(&self, name: &CStr) -> Option<Found> {
        if self.hash == 0 || self.symbols == 0 || self.strings == 0 {
            return None;
        }
        let hash = name.to_bytes().iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let table = self.hash as *const u32;
        // SAFETY: the layout of DT_GNU_HASH: numbers of buckets, of the first symbol, of words of the filter, and a shift; the
        // filter, the buckets, and a word for each symbol from the first on, of which the last of a bucket is odd. The loader
        // goes by it too.
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
