//! The kernel's types from BTF: numbers of functions, offsets of members.

use std::collections::HashMap;

use crate::error::Error;

pub const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Also reveals the byte order.
const MAGIC: u32 = 0xeb9f;
const HEAD: usize = 12;
/// Deepest nesting of unnamed structures.
const DEEPEST: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Struct,
    Union,
    Enum,
    Function,
    /// `const`, `volatile` or a typedef.
    Alias,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(pub u32);

#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    names: usize,
    /// Offsets, by type number less one.
    types: Vec<usize>,
    known: HashMap<(Kind, String), Id>,
}

impl Btf {
    /// Only types in `names` are found later.
    ///
    /// # Errors
    /// [`Error::NoTypes`], [`Error::Malformed`].
    pub fn of_kernel(names: &[(Kind, &str)]) -> Result<Btf, Error> {
        Btf::parse(std::fs::read(PATH).map_err(Error::NoTypes)?, names)
    }

    /// # Errors
    /// [`Error::Malformed`].
    pub fn parse(bytes: Vec<u8>, names: &[(Kind, &str)]) -> Result<Btf, Error> {
        let mut btf = Btf { bytes, names: 0, types: Vec::new(), known: HashMap::new() };
        if btf.number(0).map(|word| word & 0xffff) != Some(MAGIC) {
            return Err(Error::Malformed("it begins otherwise"));
        }
        let header: Vec<usize> = (1..6).map_while(|at| btf.number(at * 4)).map(|word| word as usize).collect();
        let &[length, types_at, types_len, names_at, names_len] = header.as_slice() else {
            return Err(Error::Malformed("its header is cut off"));
        };
        let whole = length.saturating_add(names_at).saturating_add(names_len).max(length + types_at + types_len);
        if whole > btf.bytes.len() {
            return Err(Error::Malformed("it is cut off"));
        }
        btf.names = length + names_at;
        let (mut at, end) = (length + types_at, length + types_at + types_len);
        while at < end {
            let info = btf.number(at + 4).ok_or(Error::Malformed("a type is cut off"))?;
            let id = Id(btf.types.len() as u32 + 1);
            btf.types.push(at);
            let wanted = |(kind, name): &&(Kind, &str)| *kind == kind_of(info) && btf.name(at) == name.as_bytes();
            if let Some((kind, name)) = names.iter().find(wanted) {
                btf.known.entry((*kind, (*name).to_owned())).or_insert(id);
            }
            at += HEAD + size_behind(info).ok_or(Error::Malformed("a kind of type is new"))?;
        }
        Ok(btf)
    }

    /// # Errors
    /// [`Error::Missing`].
    pub fn find(&self, kind: Kind, name: &str) -> Result<Id, Error> {
        let word = match kind {
            Kind::Function => "function",
            Kind::Struct => "struct",
            Kind::Union => "union",
            Kind::Enum => "enum",
            Kind::Alias | Kind::Other => "type",
        };
        self.known.get(&(kind, name.to_owned())).copied().ok_or_else(|| Error::Missing(format!("{word} {name}")))
    }

    /// `None`: the kernel lacks the structure. A renamed member stays an error.
    ///
    /// # Errors
    /// Those of `found`.
    pub fn where_there<T>(&self, structure: &str, found: impl FnOnce() -> Result<T, Error>) -> Result<Option<T>, Error> {
        self.find(Kind::Struct, structure).ok().map(|_| found()).transpose()
    }

    /// In bytes; the member may be in unnamed inner structures.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn offset(&self, structure: &str, member: &str) -> Result<i16, Error> {
        let missing = || Error::Missing(format!("{structure}.{member}"));
        let id = self.find(Kind::Struct, structure)?;
        let bits = self.member(id, member.as_bytes(), 0, 0).ok_or_else(missing)?;
        i16::try_from(bits / 8).map_err(|_| missing())
    }

    /// In bytes.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn size(&self, structure: &str) -> Result<i16, Error> {
        let missing = || Error::Missing(format!("struct {structure} of a usual size"));
        let at = self.at(self.find(Kind::Struct, structure)?).ok_or_else(missing)?;
        self.number(at + 8).and_then(|size| size.try_into().ok()).ok_or_else(missing)
    }

    /// # Errors
    /// [`Error::Missing`].
    pub fn value(&self, enumeration: &str, name: &str) -> Result<i32, Error> {
        let missing = || Error::Missing(format!("{name} in enum {enumeration}"));
        let at = self.at(self.find(Kind::Enum, enumeration)?).ok_or_else(missing)?;
        let info = self.number(at + 4).ok_or_else(missing)?;
        let mut entries = (0..length(info)).map(|i| at + HEAD + i * 8);
        let entry = entries.find(|entry| self.name(*entry) == name.as_bytes()).ok_or_else(missing)?;
        self.number(entry + 4).map(u32::cast_signed).ok_or_else(missing)
    }

    /// In bits, `base` included.
    fn member(&self, structure: Id, name: &[u8], base: u32, depth: usize) -> Option<u32> {
        let at = self.at(structure)?;
        let info = self.number(at + 4)?;
        for entry in (0..length(info)).map(|i| at + HEAD + i * 12) {
            let raw = self.number(entry + 8)?;
            // With the flag, the upper 8 bits are a bit field's width.
            let bits = base.checked_add(if info >> 31 != 0 { raw & 0xff_ffff } else { raw })?;
            if self.name(entry) == name {
                return Some(bits);
            }
            if self.name(entry).is_empty() && depth < DEEPEST {
                let inner = self.behind_aliases(Id(self.number(entry + 4)?))?;
                let found = self.is_structure(inner).then(|| self.member(inner, name, bits, depth + 1));
                if let Some(found) = found.flatten() {
                    return Some(found);
                }
            }
        }
        None
    }

    fn behind_aliases(&self, mut id: Id) -> Option<Id> {
        for _ in 0..DEEPEST {
            let at = self.at(id)?;
            if kind_of(self.number(at + 4)?) != Kind::Alias {
                return Some(id);
            }
            id = Id(self.number(at + 8)?);
        }
        None
    }

    fn is_structure(&self, id: Id) -> bool {
        let info = self.at(id).and_then(|at| self.number(at + 4));
        info.is_some_and(|info| matches!(kind_of(info), Kind::Struct | Kind::Union))
    }

    /// 0 is `void`.
    fn at(&self, id: Id) -> Option<usize> {
        self.types.get((id.0 as usize).checked_sub(1)?).copied()
    }

    fn name(&self, at: usize) -> &[u8] {
        let start = self.number(at).map_or(usize::MAX, |offset| self.names.saturating_add(offset as usize));
        let rest = self.bytes.get(start..).unwrap_or_default();
        &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(0)]
    }

    fn number(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }
}

fn length(info: u32) -> usize {
    (info & 0xffff) as usize
}

fn kind_of(info: u32) -> Kind {
    match info >> 24 & 0x1f {
        4 => Kind::Struct,
        5 => Kind::Union,
        6 => Kind::Enum,
        8..=11 => Kind::Alias,
        12 => Kind::Function,
        _ => Kind::Other,
    }
}

fn size_behind(info: u32) -> Option<usize> {
    let entries = length(info);
    Some(match info >> 24 & 0x1f {
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, 64-bit enumerations.
        4 | 5 | 15 | 19 => 12 * entries,
        // Enumerations, arguments.
        6 | 13 => 8 * entries,
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Made {
        types: Vec<u32>,
        names: Vec<u8>,
    }

    impl Made {
        fn name(&mut self, name: &str) -> u32 {
            if self.names.is_empty() {
                self.names.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.names.len() as u32;
            self.names.extend(name.bytes().chain([0]));
            at
        }

        fn one(&mut self, name: &str, kind: u32, entries: usize, size: u32, behind: &[u32]) {
            let name = self.name(name);
            self.types.extend([name, kind << 24 | entries as u32, size]);
            self.types.extend(behind);
        }

        fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) {
            let behind: Vec<u32> = members.iter().flat_map(|(name, of, bits)| [self.name(name), *of, *bits]).collect();
            self.one(name, 4, members.len(), size, &behind);
        }

        fn bytes(&self) -> Vec<u8> {
            let types = self.types.len() as u32 * 4;
            let header = [MAGIC | 1 << 16, 24, 0, types, types, self.names.len() as u32];
            let words = header.iter().chain(&self.types).flat_map(|word| word.to_ne_bytes());
            words.chain(self.names.iter().copied()).collect()
        }
    }

    const NAMES: [(Kind, &str); 4] =
        [(Kind::Struct, "outer"), (Kind::Enum, "colours"), (Kind::Function, "paint"), (Kind::Function, "gone")];

    fn made() -> Made {
        let mut made = Made::default();
        made.one("int", 1, 0, 4, &[32]);
        made.structure("", 16, &[("left", 1, 0), ("right", 1, 64)]);
        made.one("", 10, 0, 2, &[]);
        made.structure("outer", 48, &[("first", 1, 0), ("", 3, 128), ("last", 1, 256)]);
        let [red, green] = ["red", "green"].map(|name| made.name(name));
        made.one("colours", 6, 2, 4, &[red, 0, green, 1 << 6]);
        made.one("paint", 12, 0, 1, &[]);
        made
    }

    #[test]
    fn members_are_found_through_structures_without_names() {
        let btf = Btf::parse(made().bytes(), &NAMES).unwrap();
        let offset = |name| btf.offset("outer", name).ok();
        assert_eq!(["first", "left", "right", "last", "none"].map(offset), [Some(0), Some(16), Some(24), Some(32), None]);
        assert_eq!(btf.size("outer").unwrap(), 48);
        assert_eq!((btf.value("colours", "green").unwrap(), btf.value("colours", "blue").is_err()), (64, true));
        assert_eq!(btf.find(Kind::Function, "paint").unwrap(), Id(6));
        assert_eq!(btf.find(Kind::Function, "gone").unwrap_err().to_string(), "this kernel has no function gone");
        assert_eq!(btf.offset("outer", "none").unwrap_err().to_string(), "this kernel has no outer.none");
    }

    #[test]
    fn what_a_kernel_is_without_is_no_error_but_a_member_of_another_name_is() {
        let btf = Btf::parse(made().bytes(), &NAMES).unwrap();
        let last = || btf.offset("outer", "last");
        assert_eq!(btf.where_there("outer", last).unwrap(), Some(32));
        assert_eq!(btf.where_there("gone", last).unwrap(), None);
        assert!(btf.where_there("outer", || btf.offset("outer", "none")).is_err());
    }

    #[test]
    fn what_is_cut_off_or_new_is_refused() {
        let whole = made().bytes();
        for len in 0..whole.len() {
            assert!(matches!(Btf::parse(whole[..len].to_vec(), &NAMES), Err(Error::Malformed(_))), "{len}");
        }
        let mut new = made();
        new.one("future", 31, 0, 0, &[]);
        assert!(matches!(Btf::parse(new.bytes(), &NAMES), Err(Error::Malformed(_))));
    }

    #[test]
    fn a_structure_inside_itself_comes_to_an_end() {
        let mut made = Made::default();
        made.structure("outer", 8, &[("", 1, 0), ("", 2, 0)]);
        made.one("", 10, 0, 2, &[]);
        assert!(Btf::parse(made.bytes(), &NAMES).unwrap().offset("outer", "x").is_err());
    }
}
