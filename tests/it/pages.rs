//! Checks that each link of the pages, and of the documentation in `src/`, has a target in the package, and that README.md and the
//! documentation begin alike. Links to other sites are not followed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

/// The address at which docs.rs shows the files of the package.
const FILES: &str = "https://docs.rs/crate/leasehold/latest/source/";
/// The address at which docs.rs shows the documentation of the items.
const ITEMS: &str = "https://docs.rs/leasehold/latest/leasehold/";
/// The size limit of a picture of README.md, in bytes.
const PICTURE: usize = 12 << 10;

/// The text of each file of the package, by its path.
type Package = BTreeMap<String, String>;

/// Returns the files that the list `include` of Cargo.toml names.
fn package() -> Package {
    let root = Path::new(crate::ROOT);
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    let (_, include) = manifest.split_once("\ninclude = [").expect("a list");
    let (include, _) = include.split_once(']').expect("its end");
    let (mut package, mut left_out) = (Package::new(), Vec::new());
    for entry in include.split('"').skip(1).step_by(2) {
        let Some(entry) = entry.strip_prefix('/') else {
            left_out.push(entry.strip_prefix("!/").expect("a slash in front"));
            continue;
        };
        // No page links to the licences.
        if !entry.contains('*') {
            read(root, entry.trim_end_matches('/'), &mut package);
        }
    }
    package.retain(|path, _| !left_out.iter().any(|left_out| path.starts_with(left_out)));
    // README.md leads to it. In the package that link leads to the repository.
    read(root, "examples/README.md", &mut package);
    package
}

/// Reads a file, or all files of a folder.
fn read(root: &Path, path: &str, package: &mut Package) {
    let full = root.join(path);
    if !full.is_dir() {
        let text = fs::read_to_string(full).unwrap_or_else(|error| panic!("{path}: {error}"));
        package.insert(path.to_owned(), text);
        return;
    }
    for entry in fs::read_dir(full).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("a name in UTF-8");
        read(root, &format!("{path}/{name}"), package);
    }
}

fn is_a(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|it| it == extension)
}

/// Returns each link whose target does not exist, as `file: target`.
fn dead_links(package: &Package) -> Vec<String> {
    let mut dead = Vec::new();
    for (path, text) in package {
        let is_page = is_a(path, "md");
        let docs = if is_a(path, "rs") {
            doc_comments(text)
        } else if is_page {
            text.clone()
        } else {
            continue;
        };
        for target in links(&docs, is_page) {
            let is_there = if is_page {
                is_there_for_a_page(package, path, &target)
            } else {
                is_there_for_code(package, path, &target)
            };
            if !is_there {
                dead.push(format!("{path}: {target}"));
            }
        }
    }
    dead
}

/// Returns whether the target of a link exists. The link is on a page.
fn is_there_for_a_page(package: &Package, page: &str, target: &str) -> bool {
    if let Some(item) = target.strip_prefix(ITEMS) {
        return is_item(package, item);
    }
    let (place, anchor) = split_anchor(target);
    let path = match place.strip_prefix(FILES) {
        Some(path) => path.to_owned(),
        None if place.contains("://") => return true,
        // The record and its pictures are in the repository only.
        None if page == "EVIDENCE.md" && place.starts_with("docs/evidence/") => return true,
        None if place.is_empty() => page.to_owned(),
        None => join(page, place),
    };
    let Some(text) = package.get(&path) else {
        return false;
    };
    anchor.is_none_or(|anchor| has_heading(text, anchor))
}

/// Returns whether the target of a link exists. The link is in a documentation comment. rustdoc checks the names of items,
/// but not the headings on their pages.
fn is_there_for_code(package: &Package, file: &str, target: &str) -> bool {
    let (place, anchor) = split_anchor(target);
    if place.contains("://") {
        return is_there_for_a_page(package, file, target);
    }
    let Some(anchor) = anchor else {
        // docs.rs does not show a page beside the documentation.
        return Path::new(place).extension().is_none();
    };
    let has = |text: &String| has_heading(&doc_comments(text), anchor);
    match place {
        "" => has(&package[file]),
        "crate" => has(&package["src/lib.rs"]),
        _ => code(package).any(|text| defines(text, place) && has(text)),
    }
}

/// Returns whether rustdoc makes this page, such as `struct.Mutex.html#method.lock`. The front page is the empty text.
fn is_item(package: &Package, item: &str) -> bool {
    let (page, anchor) = split_anchor(item);
    let front = &package["src/lib.rs"];
    if page.is_empty() {
        return anchor.is_none_or(|anchor| has_heading(&doc_comments(front), anchor));
    }
    if let Some(module) = page.strip_suffix('/') {
        let start = format!("pub mod {module}");
        return [";", " {"]
            .iter()
            .any(|end| front.contains(&format!("{start}{end}")));
    }
    let name = page
        .strip_suffix(".html")
        .and_then(|page| page.split_once('.'));
    let has_method = |anchor: &str| {
        let method = anchor.strip_prefix("method.");
        method.is_some_and(|method| {
            // It may be generic.
            let starts = ["(", "<"].map(|end| format!("pub fn {method}{end}"));
            code(package).any(|text| starts.iter().any(|start| text.contains(start)))
        })
    };
    name.is_some_and(|(_, name)| code(package).any(|text| defines(text, name)))
        && anchor.is_none_or(has_method)
}

fn code(package: &Package) -> impl Iterator<Item = &String> {
    let files = package.iter().filter(|(path, _)| is_a(path, "rs"));
    files.map(|(_, text)| text)
}

fn defines(text: &str, name: &str) -> bool {
    ["struct", "enum", "trait"].iter().any(|kind| {
        let start = format!("pub {kind} {name}");
        let mut ends = text.split(&start).skip(1);
        ends.any(|end| !end.starts_with(char::is_alphanumeric))
    })
}

fn split_anchor(target: &str) -> (&str, Option<&str>) {
    let parts = target.split_once('#');
    parts.map_or((target, None), |(place, anchor)| (place, Some(anchor)))
}

/// Returns the path of a file that a page names relative to itself.
fn join(page: &str, place: &str) -> String {
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in place.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns the documentation of a source file.
fn doc_comments(code: &str) -> String {
    let lines = code.lines().map(str::trim_start).filter_map(|line| {
        let text = line.strip_prefix("//!").or(line.strip_prefix("///"))?;
        Some(text.strip_prefix(' ').unwrap_or(text))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the targets of all links and images. Of a page, also each label without a target, as `[label]`.
fn links(text: &str, is_page: bool) -> Vec<String> {
    let text = prose(text).collect::<Vec<_>>().join("\n");
    let (mut targets, mut labels, mut labels_used) = (Vec::new(), HashSet::new(), Vec::new());
    for paragraph in text.split("\n\n") {
        // Every second part is code.
        let paragraph: String = paragraph.split('`').step_by(2).collect();
        let definitions = paragraph
            .lines()
            .filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
        for (label, target) in definitions.filter(|(_, target)| !target.contains(' ')) {
            labels.insert(label.to_owned());
            targets.push(target.to_owned());
        }
        let mut rest = &*paragraph;
        while let Some((_, after)) = rest.split_once('[') {
            rest = after;
            let Some((label, after)) = after.split_once(']') else {
                break;
            };
            if let Some(target) = after.strip_prefix('(') {
                targets.push(target.split(')').next().unwrap_or_default().to_owned());
            } else if !after.starts_with([':', '[']) && !label.is_empty() {
                labels_used.push(label.to_owned());
            }
        }
    }
    if is_page {
        labels_used.retain(|label| !labels.contains(label));
        targets.extend(labels_used.iter().map(|label| format!("[{label}]")));
    }
    targets
}

/// Returns whether a text has a heading with this anchor. GitHub and rustdoc make an anchor in the same way.
fn has_heading(text: &str, anchor: &str) -> bool {
    let mut seen = HashMap::new();
    prose(text)
        .filter(|line| line.starts_with('#'))
        .any(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let letters = heading.chars().filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                _ => letter.is_alphanumeric().then_some(letter),
            });
            let name: String = letters.collect();
            let count = seen.entry(name.clone()).or_insert(0);
            *count += 1;
            match *count {
                1 => name == anchor,
                count => format!("{name}-{}", count - 1) == anchor,
            }
        })
}

/// Returns the cells of the first table under a heading, row by row, without the head and the first two columns.
fn cells<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = page.split_once(heading).expect("the heading");
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    rows.flat_map(|row| row.split('|').skip(3).map(str::trim))
        .collect()
}

/// Returns the texts of a picture.
fn texts(picture: &str) -> impl Iterator<Item = &str> {
    let texts = picture.lines().filter(|line| line.starts_with("<text "));
    texts.filter_map(|line| line.strip_suffix("</text>")?.rsplit('>').next())
}

fn is_figure(text: &&str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|letter| letter.is_ascii_digit() || ",.".contains(letter))
}

#[test]
fn every_link_of_the_pages_and_the_documentation_has_a_target() {
    let package = package();
    let pages = package.keys().filter(|path| is_a(path, "md"));
    assert!(pages.count() >= 8, "{:?}", package.keys());
    assert_eq!(dead_links(&package), [""; 0]);
}

#[test]
fn dead_links_are_found() {
    let readme = "
# The top
[](#the-top) [](#nowhere) ![](docs/picture.svg) ![](docs/none.svg) `[](code)` [known] [unknown]
```
[](code)
```
[](docs/page.md#twice-or-so-1) [](docs/page.md#twice-or-so-2)
[](https://docs.rs/crate/leasehold/latest/source/docs/page.md) [](https://example.org/)
[](https://docs.rs/leasehold/latest/leasehold/there/) [](https://docs.rs/leasehold/latest/leasehold/gone/)
[](https://docs.rs/leasehold/latest/leasehold/#panics) [](https://docs.rs/leasehold/latest/leasehold/#fear)
[](https://docs.rs/leasehold/latest/leasehold/struct.A.html#method.go)
[](https://docs.rs/leasehold/latest/leasehold/struct.A.html#method.stay)

[known]: https://docs.rs/crate/leasehold/latest/source/docs/none.md
";
    let page = "## `Twice`, or so\n## `Twice`, or so\n[](../README.md#the-top) [](README.md)";
    let lib = "//! # Panics\n//! [](crate#panics) [](crate#fear)\npub mod there;";
    let code =
        "/// # Sizes\n/// [](A#sizes) [](A#colours) [](../docs/page.md)\npub struct A;\npub fn go(";
    let other = "//! [](#here)";
    let files = [
        ("README.md", readme),
        ("docs/page.md", page),
        ("docs/picture.svg", ""),
        ("src/a.rs", code),
        ("src/b.rs", other),
        ("src/lib.rs", lib),
    ];
    let package = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let dead = [
        "README.md: https://docs.rs/crate/leasehold/latest/source/docs/none.md",
        "README.md: #nowhere",
        "README.md: docs/none.svg",
        "README.md: docs/page.md#twice-or-so-2",
        "README.md: https://docs.rs/leasehold/latest/leasehold/gone/",
        "README.md: https://docs.rs/leasehold/latest/leasehold/#fear",
        "README.md: https://docs.rs/leasehold/latest/leasehold/struct.A.html#method.stay",
        "README.md: [unknown]",
        "docs/page.md: README.md",
        "src/a.rs: A#colours",
        "src/a.rs: ../docs/page.md",
        "src/b.rs: #here",
        "src/lib.rs: crate#fear",
    ];
    let mut found = dead_links(&Package::from(package));
    found.sort();
    let mut dead = dead.map(str::to_owned);
    dead.sort();
    assert_eq!(found, dead);
}

/// The test of the examples runs the code that both pages show.
#[test]
fn readme_and_the_documentation_begin_with_one_text_whose_code_is_an_example() {
    let package = package();
    let (readme, docs) = (&package["README.md"], doc_comments(&package["src/lib.rs"]));
    let front = readme.split("\n## ").next().expect("the top of the page");
    let front = front.strip_prefix("# leasehold\n\n").expect("its heading");
    let (docs, _) = docs.split_once("\n[loss]: ").expect("the end of that text");
    let shown = docs.lines().filter(|line| !line.starts_with("# "));
    let shown = shown.collect::<Vec<_>>().join("\n");
    assert_eq!(front.trim_end(), shown.trim_end());

    let example = Path::new(crate::ROOT).join("examples/quickstart.rs");
    let example = fs::read_to_string(example).expect("the example");
    let programs: Vec<_> = front.split("```").skip(1).step_by(2).collect();
    assert_eq!(programs.len(), 2);
    for program in programs {
        let code = program.strip_prefix("rust\n").expect("a program in Rust");
        assert!(
            example.contains(code),
            "examples/quickstart.rs lacks:\n{code}"
        );
    }
}

/// A page shows a picture as an image. Then docs.rs applies no style sheet, and loads nothing else.
#[test]
fn pictures_are_small_and_complete() {
    let package = package();
    for name in ["hand-over", "loss", "peers"] {
        let picture = &package[&format!("docs/{name}.svg")];
        assert!(picture.len() <= PICTURE, "{name}: {} bytes", picture.len());
        assert!(picture.contains("<title>"), "{name}");
        for foreign in ["<style", " style=", "<script", "href", "<image"] {
            assert!(!picture.contains(foreign), "{name}: {foreign}");
        }
    }
}

#[test]
fn the_plot_of_other_clients_has_the_figures_of_the_table() {
    let package = package();
    let cells = cells(
        &package["docs/PERFORMANCE.md"],
        "\n## Beside other clients\n",
    );
    let figures = cells.iter().filter_map(|cell| cell.split(' ').next());
    let figures: Vec<_> = figures.filter(is_figure).collect();
    let shown: Vec<_> = texts(&package["docs/peers.svg"])
        .filter(is_figure)
        .collect();
    assert!(figures.len() > 20, "{figures:?}");
    assert_eq!(figures, shown);
}
