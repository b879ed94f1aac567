//! Text for XML 1.0.

use std::fmt;

use super::terminal::tidy;

/// A stranger's text, for character data and for attributes in double quotes.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in tidy(self.0).chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&apos;")?,
                // The only others that XML cannot carry once control characters are gone.
                '\u{fffe}' | '\u{ffff}' => {}
                other => fmt::Write::write_char(f, other)?,
            }
        }
        Ok(())
    }
}
