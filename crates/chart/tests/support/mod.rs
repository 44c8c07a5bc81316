//! Reads figures back: a strict reader of the little XML that they are made of, and where their texts lie.

use std::collections::BTreeMap;

/// One element. `text` is its own, with entities resolved.
#[derive(Clone, Debug)]
pub struct Element {
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    pub text: String,
}

impl Element {
    pub fn number(&self, attribute: &str) -> f64 {
        let value = self.attributes.get(attribute).unwrap_or_else(|| panic!("no {attribute} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{attribute} of {self:?}"))
    }

    pub fn is(&self, attribute: &str, value: &str) -> bool {
        self.attributes.get(attribute).is_some_and(|have| have == value)
    }
}

/// All elements in the order of their start, or why this is not well-formed.
pub fn read(xml: &str) -> Result<Vec<Element>, String> {
    let mut elements: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut rest = xml.trim_end();
    if let Some(bad) = rest.chars().find(|character| *character < ' ' && *character != '\n') {
        return Err(format!("character {bad:?}"));
    }
    while !rest.is_empty() {
        if let Some(end) = rest.strip_prefix("</") {
            let (name, after) = end.split_once('>').ok_or("an end tag that does not end")?;
            let index = open.pop().ok_or("an end without a start")?;
            if elements[index].name != name {
                return Err(format!("</{name}> ends <{}>", elements[index].name));
            }
            rest = after;
        } else if let Some(start) = rest.strip_prefix('<') {
            if open.is_empty() && !elements.is_empty() {
                return Err("two roots".into());
            }
            let length = start.find([' ', '/', '>']).ok_or("a tag that does not end")?;
            let (name, mut inside) = start.split_at(length);
            let mut attributes = BTreeMap::new();
            while let Some(next) = inside.strip_prefix(' ') {
                let (key, value) =
                    next.split_once("=\"").ok_or_else(|| format!("attribute at {next:.40}"))?;
                let (value, after) = value.split_once('"').ok_or("a value that does not end")?;
                if key.is_empty()
                    || key.contains(|other: char| !other.is_ascii_alphanumeric() && other != '-')
                {
                    return Err(format!("attribute {key:?}"));
                }
                if attributes.insert(key.to_owned(), resolve(value)?).is_some() {
                    return Err(format!("{key} twice"));
                }
                inside = after;
            }
            elements.push(Element { name: name.into(), attributes, text: String::new() });
            rest = match (inside.strip_prefix("/>"), inside.strip_prefix('>')) {
                (Some(after), _) => after,
                (_, Some(after)) => {
                    open.push(elements.len() - 1);
                    after
                }
                _ => return Err(format!("tag {name} at {inside:.40}")),
            };
        } else {
            let (text, after) = rest.split_at(rest.find('<').ok_or("text behind the end")?);
            let index = *open.last().ok_or("text outside")?;
            elements[index].text.push_str(&resolve(text)?);
            rest = after;
        }
    }
    if open.is_empty() && !elements.is_empty() { Ok(elements) } else { Err("not closed".into()) }
}

fn resolve(text: &str) -> Result<String, String> {
    let mut parts = text.split('&');
    let mut resolved = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (entity, after) = part.split_once(';').ok_or_else(|| format!("bare & before {part:.20}"))?;
        resolved.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "#39" => '\'',
            other => return Err(format!("entity {other}")),
        });
        resolved.push_str(after);
    }
    if resolved.len() == text.len() && text.contains(['<', '>']) {
        Err("bare angle".into())
    } else {
        Ok(resolved)
    }
}

/// The corners of a text, for letters a little narrower than those of common fonts: what touches here is unreadable.
fn corners(text: &Element) -> [(f64, f64); 4] {
    let size = text.number("font-size");
    let width = text.text.chars().count() as f64 * size * 0.5;
    let (x, y) = (text.number("x"), text.number("y"));
    let left = match text.attributes.get("text-anchor").map(String::as_str) {
        Some("end") => -width,
        Some("middle") => -width / 2.0,
        _ => 0.0,
    };
    let angle = text.attributes.get("transform").map_or(0.0, |transform| {
        let inside = transform.strip_prefix("rotate(").and_then(|inside| inside.strip_suffix(')')).unwrap();
        let numbers: Vec<f64> = inside.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers[1..], [x, y], "turned around its own place");
        numbers[0].to_radians()
    });
    let (sine, cosine) = angle.sin_cos();
    let (top, bottom) = (-0.72 * size, 0.16 * size);
    [(left, top), (left + width, top), (left + width, bottom), (left, bottom)]
        .map(|(dx, dy)| (x + dx * cosine - dy * sine, y + dx * sine + dy * cosine))
}

/// Whether two rectangles, turned or not, have a point in common: no side of either separates them.
fn overlap(one: &[(f64, f64); 4], other: &[(f64, f64); 4]) -> bool {
    let separates = |from: (f64, f64), to: (f64, f64)| {
        let normal = (to.1 - from.1, from.0 - to.0);
        let reach = |corners: &[(f64, f64); 4]| {
            let along = corners.map(|(x, y)| x * normal.0 + y * normal.1);
            (
                along.into_iter().fold(f64::INFINITY, f64::min),
                along.into_iter().fold(f64::NEG_INFINITY, f64::max),
            )
        };
        let (one, other) = (reach(one), reach(other));
        one.1 <= other.0 || other.1 <= one.0
    };
    ![one, other].iter().any(|corners| (0..4).any(|side| separates(corners[side], corners[(side + 1) % 4])))
}

/// Reads a figure and checks what holds for all of them.
pub fn check(svg: &str) -> Vec<Element> {
    let elements = read(svg).unwrap_or_else(|error| panic!("{error} in\n{svg}"));
    let root = &elements[0];
    assert_eq!(root.name, "svg");
    let (width, height) = (root.number("width"), root.number("height"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    for element in &elements[1..] {
        let ends: &[[&str; 2]] = match element.name.as_str() {
            "line" => &[["x1", "y1"], ["x2", "y2"]],
            "text" | "rect" if !element.is("width", "100%") => &[["x", "y"]],
            _ => &[],
        };
        for [x, y] in ends {
            let (x, y) = (element.number(x), element.number(y));
            assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "off the page: {element:?}");
        }
    }
    let texts: Vec<_> = elements.iter().filter(|element| element.name == "text").collect();
    for (index, text) in texts.iter().enumerate() {
        assert!(text.number("font-size") >= 11.0, "{text:?}");
        let mine = corners(text);
        let is_on = |(x, y): &(f64, f64)| (0.0..=width).contains(x) && (0.0..=height).contains(y);
        assert!(mine.iter().all(is_on), "off the page of {width} x {height}: {text:?}");
        for other in &texts[..index] {
            assert!(!overlap(&mine, &corners(other)), "{text:?} lies on {other:?}");
        }
    }
    elements
}
