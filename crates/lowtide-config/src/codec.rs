//! Codecs as text: `lz4`, `zstd` or `zstd:LEVEL`.

use lowtide_core::codec::Codec;

/// zstd's own default.
const DEFAULT_LEVEL: i32 = 3;

/// Reads a codec.
///
/// # Errors
/// What is wrong, without the text itself.
pub fn parse(text: &str) -> Result<Codec, String> {
    let wrong_level = || "the level of zstd is a number from -7 to 22, not 0: use zstd:3".to_owned();
    match text.split_once(':') {
        None if text == "lz4" => Ok(Codec::Lz4),
        None if text == "zstd" => Ok(Codec::Zstd(DEFAULT_LEVEL)),
        Some(("lz4", _)) => Err("lz4 has no levels: use lz4 or zstd:LEVEL".to_owned()),
        Some(("zstd", level)) => level.parse().ok().filter(|level| is_level(*level)).map(Codec::Zstd).ok_or_else(wrong_level),
        _ => Err("unknown codec: use lz4 or zstd[:LEVEL]".to_owned()),
    }
}

/// Whether zstd has this level.
pub fn is_level(level: i32) -> bool {
    matches!(level, -7..=-1 | 1..=22)
}

/// A codec in the form of [`parse`].
pub fn show(codec: Codec) -> String {
    match codec {
        Codec::Lz4 => "lz4".to_owned(),
        Codec::Zstd(level) => format!("zstd:{level}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs() {
        assert_eq!(parse("lz4"), Ok(Codec::Lz4));
        assert_eq!(parse("zstd"), Ok(Codec::Zstd(3)));
        assert_eq!(parse("zstd:-3"), Ok(Codec::Zstd(-3)));
        for text in ["", "lzo", "lz4:1", "zstd:", "zstd:0", "zstd:23", "zstd:x", "LZ4"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for codec in [Codec::Lz4, Codec::Zstd(3), Codec::Zstd(-7)] {
            assert_eq!(parse(&show(codec)), Ok(codec));
        }
    }
}
