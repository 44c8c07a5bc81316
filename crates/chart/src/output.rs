//! Figures as files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONVERTER: &str = "rsvg-convert";

/// What [`write()`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The figure.
    pub svg: PathBuf,
    /// The same in pixels, for pages that show no SVG; `None` where `rsvg-convert` (Debian: librsvg2-bin) is missing.
    pub png: Option<PathBuf>,
}

/// Writes a figure to `name.svg` in a directory that exists, and to `name.png` with two pixels to one where
/// `rsvg-convert` is installed. Where it is not, a `name.png` of an earlier figure is removed: it would show something
/// else than its neighbour.
///
/// # Errors
///
/// A file cannot be written, or the converter fails; the SVG is then there, the PNG is not.
pub fn write(directory: &Path, name: &str, svg: &str) -> io::Result<Written> {
    write_with(CONVERTER, directory, name, svg)
}

fn write_with(converter: &str, directory: &Path, name: &str, svg: &str) -> io::Result<Written> {
    // Not `with_extension`: names may have dots.
    let svg_path = directory.join(format!("{name}.svg"));
    let png_path = directory.join(format!("{name}.png"));
    fs::write(&svg_path, svg)?;
    match fs::remove_file(&png_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let output = Command::new(converter).args(["--zoom", "2", "-o"]).arg(&png_path).arg(&svg_path).output();
    let png = match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io::Error::new(error.kind(), format!("{converter}: {error}"))),
        Ok(output) if output.status.success() && png_path.is_file() => Some(png_path),
        Ok(output) => {
            let _ = fs::remove_file(&png_path);
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!(
                "{converter} made no {}: {}",
                png_path.display(),
                said.trim()
            )));
        }
    };
    Ok(Written { svg: svg_path, png })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVG: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"30\" height=\"20\"><rect width=\"9\" height=\"9\"/></svg>";

    #[test]
    fn without_a_converter_there_is_the_svg_and_no_old_png() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a.b.png"), "old").unwrap();
        let written = write_with("no-such-converter", directory.path(), "a.b", SVG).unwrap();
        assert_eq!(written, Written { svg: directory.path().join("a.b.svg"), png: None });
        assert_eq!(fs::read_to_string(written.svg).unwrap(), SVG);
        assert!(!directory.path().join("a.b.png").exists());
    }

    #[test]
    fn a_converter_that_fails_or_writes_nothing_is_an_error() {
        for converter in ["false", "true"] {
            let directory = tempfile::tempdir().unwrap();
            let error = write_with(converter, directory.path(), "figure", SVG).unwrap_err();
            assert!(error.to_string().contains("figure.png"), "{error}");
            assert!(directory.path().join("figure.svg").exists());
        }
    }

    #[test]
    fn the_png_has_two_pixels_to_one_where_there_is_a_converter() {
        let directory = tempfile::tempdir().unwrap();
        let written = write(directory.path(), "figure", SVG).unwrap();
        let is_installed = Command::new(CONVERTER).arg("--version").output().is_ok();
        assert_eq!(written.png.is_some(), is_installed);
        if let Some(png) = written.png {
            let bytes = fs::read(png).unwrap();
            assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
            assert_eq!(bytes[16..24], [0, 0, 0, 60, 0, 0, 0, 40]);
        }
    }
}
