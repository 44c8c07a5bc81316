//! Reports for people: lines, tables and pictures of one page.

use std::io;
use std::path::Path;

use haul_chart::Value;

use crate::statistics::Estimate;

/// A page of Markdown that grows, and the directory of its pictures.
pub struct Page<'a> {
    /// So far.
    pub text: String,
    /// Where it and its pictures go.
    pub directory: &'a Path,
}

impl<'a> Page<'a> {
    /// Nothing yet.
    pub fn new(directory: &'a Path) -> Page<'a> {
        Page { text: String::new(), directory }
    }

    /// A line of text.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    /// A picture that was written.
    pub fn picture(&mut self, picture: &Picture) {
        self.line(format!("\n![{}]({}.svg)", picture.title, picture.name));
    }

    /// A row of a table.
    pub fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.text.push('|');
        for cell in cells {
            // A line between columns is not a part of a cell.
            self.text.push_str(&format!(" {} |", cell.as_ref().replace('|', "\\|")));
        }
        self.text.push('\n');
    }

    /// A row of names, and the line below it.
    pub fn heading<T: AsRef<str>>(&mut self, names: &[T]) {
        self.row(names);
        self.line(format!("|{}", "---|".repeat(names.len())));
    }
}

/// A mean and its interval; one value has none.
pub fn show(estimate: Option<Estimate>, digits: usize) -> String {
    match estimate {
        None => "-".into(),
        Some(Estimate { mean, half_width, .. }) if half_width.is_finite() => {
            format!("{mean:.digits$} ± {half_width:.digits$}")
        }
        Some(Estimate { mean, .. }) => format!("{mean:.digits$}"),
    }
}

/// A picture that was written.
pub struct Picture {
    /// Of its files, without the extension.
    pub name: String,
    /// What it shows.
    pub title: String,
}

/// Writes one.
pub fn draw(directory: &Path, name: String, title: &str, svg: &str) -> io::Result<Picture> {
    haul_chart::write(directory, &name, svg)?;
    Ok(Picture { name, title: title.to_owned() })
}

/// An estimate as a picture shows it.
pub fn value(estimate: Option<Estimate>) -> Option<Value> {
    estimate.map(|estimate| Value::new(estimate.mean, estimate.half_width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_one_run_are_not_made_up() {
        let of = |values: &[f64]| show(Estimate::of(values), 2);
        assert_eq!(of(&[1.0]), "1.00");
        assert_eq!(of(&[]), "-");
        assert!(of(&[1.0, 2.0]).starts_with("1.50 ± 31.8"));
    }

    #[test]
    fn a_table_has_as_many_columns_in_each_line() {
        let mut page = Page::new(Path::new("/"));
        page.heading(&["a", "b"]);
        page.row([String::from("1"), "x | y".into()]);
        assert_eq!(page.text, "| a | b |\n|---|---|\n| 1 | x \\| y |\n");
    }
}
