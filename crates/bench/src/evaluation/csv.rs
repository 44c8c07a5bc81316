//! Numbers as CSV files, which reports are made of.
//!
//! A file starts with lines that say how it was made: the program and the command, then the settings, words of the form
//! `name=value`. What was made piece by piece has a line for each command; the settings are those of all.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

use crate::machine;

/// How the rows of a file were made.
#[derive(Clone, PartialEq, Debug)]
pub struct Made {
    /// The program and the command, of each piece.
    pub lines: Vec<String>,
    about: BTreeMap<String, String>,
}

impl Made {
    /// What it says of a word, such as `bytes`.
    pub fn says<T: FromStr>(&self, word: &str) -> Option<T> {
        self.about.get(word)?.parse().ok()
    }

    /// The same of a word that must be there.
    pub fn must_say<T: FromStr>(&self, word: &str) -> io::Result<T> {
        self.says(word).ok_or_else(|| io::Error::other(format!("{:?} does not say {word}", self.lines)))
    }

    /// Whether it was made with these, `name=value name=value`, and no others.
    pub fn has_settings(&self, settings: &str) -> bool {
        self.about == words_of(settings)
    }
}

/// Rows of a file, and how they were made; none where there is no file.
pub type Part<T> = Option<(Made, Vec<T>)>;

/// The program that is measured and the machine, as the first line of a file says it: who writes a report may be on another one.
pub fn version(haul: &Path) -> String {
    format!("{} on {}", machine::first_line(&haul.to_string_lossy(), &["--version"]), machine::line())
}

/// One row, by its fields.
pub struct Row(Vec<String>);

impl Row {
    /// Of a line. In quotes a field may have commas, and quotes that are doubled.
    fn of(line: &str) -> Row {
        let mut fields = vec![String::new()];
        let mut quoted = false;
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            let last = fields.len() - 1;
            match character {
                '"' if quoted && characters.next_if_eq(&'"').is_some() => fields[last].push('"'),
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(String::new()),
                other => fields[last].push(other),
            }
        }
        Row(fields)
    }

    /// The text of a field; empty where there is none.
    pub fn field(&self, index: usize) -> &str {
        self.0.get(index).map(String::as_str).unwrap_or_default()
    }

    /// A field as a number.
    pub fn number<T: FromStr>(&self, index: usize) -> Option<T> {
        self.field(index).parse().ok()
    }
}

/// Text as one field of one line.
pub fn field(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.contains([',', '"']) {
        true => format!("\"{}\"", line.replace('"', "\"\"")),
        false => line,
    }
}

/// `name=value name=value`
fn words_of(text: &str) -> BTreeMap<String, String> {
    let words = text.split_whitespace().filter_map(|word| word.split_once('='));
    words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// All rows of a file with these columns.
pub fn read<T>(path: &Path, header: &str, row: impl Fn(&Row) -> Option<T>) -> io::Result<Part<T>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    let wrong = |what: &str| io::Error::other(format!("{}: {what}", path.display()));
    let mut comments: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    // The last one says with what settings, if there are any, those before it by which commands.
    let about = words_of(if comments.len() > 1 { comments.pop().unwrap_or_default() } else { "" });
    if comments.is_empty() {
        return Err(wrong("it does not say how it was made"));
    }
    let made = Made { lines: comments.into_iter().map(str::to_owned).collect(), about };
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    if lines.next() != Some(header) {
        return Err(wrong("it has other columns"));
    }
    let rows = lines.map(|line| row(&Row::of(line)).ok_or_else(|| wrong(line)));
    Ok(Some((made, rows.collect::<io::Result<_>>()?)))
}

/// What was measured before stays until what is to be there now is whole.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("csv.new");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_with_how_they_were_made_and_damage_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a.csv");
        let read = |row: fn(&Row) -> Option<(String, u32)>| read(&path, "name,count", row);
        let row = |row: &Row| Some((row.field(0).to_owned(), row.number(1)?));
        assert!(read(row).unwrap().is_none());
        fs::write(&path, "# haul 1: haul bench\n# bytes=7 rate=2.5\nname,count\n\"a, b\",3\nc,4\n").unwrap();
        let (made, rows) = read(row).unwrap().unwrap();
        assert_eq!(rows, [("a, b".to_owned(), 3), ("c".to_owned(), 4)]);
        assert_eq!(
            (made.lines.clone(), made.says("bytes"), made.says("rate")),
            (vec!["haul 1: haul bench".to_owned()], Some(7), Some(2.5))
        );
        fs::write(&path, "# haul bench a=1\n# haul bench b=2\n# bytes=7\nname,count\n").unwrap();
        let (made, _) = read(row).unwrap().unwrap();
        assert_eq!(made.lines, ["haul bench a=1", "haul bench b=2"]);
        assert!(made.has_settings("bytes=7") && !made.has_settings("bytes=7 rate=2"));
        assert!(made.must_say::<u64>("files").is_err());
        fs::write(&path, "name,count\n").unwrap();
        assert!(read(row).unwrap_err().to_string().contains("how it was made"));
        fs::write(&path, "# haul\nname,count\na,x\n").unwrap();
        assert!(read(row).unwrap_err().to_string().contains("a,x"));
        fs::write(&path, "# haul\nname,size\n").unwrap();
        assert!(read(row).unwrap_err().to_string().contains("other columns"));
    }

    #[test]
    fn any_text_is_one_field() {
        for (text, written) in
            [("a b\n  c", "a b c"), ("a, b", "\"a, b\""), ("say \"a\"", "\"say \"\"a\"\"\""), ("", "")]
        {
            let line = format!("1,{},2", field(text));
            assert_eq!(line, format!("1,{written},2"));
            let back = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(Row::of(&line).0, ["1", &back, "2"]);
        }
    }
}
