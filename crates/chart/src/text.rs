//! Text before it is drawn: how wide it will be, where its lines end, and how XML wants it.

/// Height of a line of text, in its size.
pub(crate) const LINE: f64 = 1.25;

/// For content and for attributes. What XML cannot hold becomes U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Pixels from end to end: an estimate after DejaVu Sans, which is among the widest of the common sans-serif fonts.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    let ems = |character: char| match character {
        'i' | 'j' | 'l' | '\'' | '|' => 0.30,
        ' ' | '.' | ',' | ':' | ';' | 'I' | '\u{2009}' => 0.33,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' | '/' | '!' | '-' | '"' => 0.42,
        's' | 'c' | 'k' | 'v' | 'x' | 'y' | 'z' | 'J' => 0.57,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '—' | '…' => 1.0,
        '+' | '=' | '<' | '>' | '~' | '±' | '×' | '→' | '#' | '&' => 0.84,
        'A'..='Z' => 0.73,
        '⁰'..='₎' | '²' | '³' | '¹' => 0.41,
        '\0'..='\u{24f}' => 0.64,
        '\u{250}'..='\u{10ff}' => 0.75,
        _ => 1.0,
    };
    text.chars().map(ems).sum::<f64>() * size
}

/// The same for bold text.
pub(crate) fn width_bold(text: &str, size: f64) -> f64 {
    width(text, size) * 1.14
}

/// Lines of at most `width_max`, broken between words, and within a word where it alone is too wide. No words: no line.
pub(crate) fn wrap(text: &str, width_max: f64, width_of: impl Fn(&str) -> f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut() {
            let longer = format!("{line} {word}");
            if width_of(&longer) <= width_max {
                *line = longer;
                continue;
            }
        }
        let mut line = String::new();
        for character in word.chars() {
            line.push(character);
            if width_of(&line) > width_max && line.chars().nth(1).is_some() {
                line.pop();
                lines.push(std::mem::replace(&mut line, character.to_string()));
            }
        }
        lines.push(line);
    }
    lines
}

/// At most `width_max` wide: what is cut off is an ellipsis.
pub(crate) fn shorten(text: &str, width_max: f64, size: f64) -> String {
    if width(text, size) <= width_max {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.chars() {
        kept.push(character);
        if width(&kept, size) + size > width_max {
            kept.pop();
            break;
        }
    }
    kept.truncate(kept.trim_end().len());
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_xml_reserves_or_forbids_is_escaped() {
        assert_eq!(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
        assert_eq!(escape("1\n2\t3\0\u{1b}\u{ffff}µ"), "1 2 3\u{fffd}\u{fffd}\u{fffd}µ");
    }

    #[test]
    fn lines_are_broken_between_words_and_lose_nothing() {
        let of = |line: &str| line.len() as f64;
        assert_eq!(wrap("one two  three", 7.0, of), ["one two", "three"]);
        assert_eq!(wrap("a abcdefgh b", 3.0, of), ["a", "abc", "def", "gh", "b"]);
        assert_eq!(wrap("abc", 0.0, of), ["a", "b", "c"]);
        assert_eq!(wrap(" ", 9.0, of), Vec::<String>::new());
    }

    #[test]
    fn shortened_text_fits_and_says_that_it_was_cut() {
        assert_eq!(shorten("short", 100.0, 12.0), "short");
        let cut = shorten("a very long label of a category", 100.0, 12.0);
        assert!(cut.ends_with('…') && cut.starts_with("a very") && width(&cut, 12.0) <= 100.0, "{cut}");
        assert_eq!(shorten("word", 0.0, 12.0), "…");
    }
}
