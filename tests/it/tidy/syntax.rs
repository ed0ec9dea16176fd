//! Reads the Rust files of `src/`: which paths each file uses, and how long it is.
//!
//! Test code does not count. It is each item under `#[cfg(test)]`, and each file that is declared as
//! `#[cfg(test)] mod …;` with all files below it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A module by its names from the crate's root on: `["engine", "names"]`. The root is `[]`.
pub(super) type Module = Vec<String>;

/// A Rust file.
pub(super) struct Source {
    /// The path below `src/`.
    pub(super) path: String,
    pub(super) module: Module,
    /// The number of lines outside of test code.
    pub(super) lines: usize,
    /// The paths of at least two segments, and the paths that are imported.
    used: Vec<Used>,
    /// The methods that the file calls, but for those in the arguments of macros.
    pub(super) called: Vec<String>,
    /// The imports at the top level of the file: each name, and the path that it stands for.
    imported: HashMap<String, Used>,
    /// The modules that the file declares for tests only.
    test_modules: Vec<Module>,
    /// The names of the types, traits and aliases that the file declares.
    pub(super) types: Vec<String>,
    /// The methods, constants and variants of types, each as `Type::name`.
    pub(super) members: Vec<String>,
}

/// A path as it is written, and the module in which it is written.
#[derive(Clone)]
struct Used {
    inside: Module,
    path: Vec<String>,
}

impl Source {
    /// Parses a file.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let module = module_of(path);
        let mut reader = Reader {
            inside: module.clone(),
            source: Self {
                path: path.into(),
                module,
                lines: text.lines().count(),
                used: Vec::new(),
                called: Vec::new(),
                imported: HashMap::new(),
                test_modules: Vec::new(),
                types: Vec::new(),
                members: Vec::new(),
            },
        };
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        reader.visit_file(&file);
        reader.source
    }

    /// Returns the paths whose first segment is `first`, as they are written.
    pub(super) fn paths_from(&self, first: &str) -> Vec<String> {
        let matching = self.used.iter().filter(|used| used.path[0] == first);
        matching.map(|used| used.path.join("::")).collect()
    }
}

/// The sources of the crate, without the files for tests only.
pub(super) struct Tree {
    sources: Vec<Source>,
    index: HashMap<Module, usize>,
}

impl Tree {
    /// Parses files, each given by its path below `src/` and its text.
    pub(super) fn new<P: AsRef<str>, T: AsRef<str>>(files: &[(P, T)]) -> Self {
        let mut sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(path.as_ref(), text.as_ref()))
            .collect();
        let for_tests: Vec<Module> = sources
            .iter()
            .flat_map(|source| source.test_modules.clone())
            .collect();
        sources.retain(|source| !for_tests.iter().any(|test| source.module.starts_with(test)));
        let modules = sources.iter().map(|source| source.module.clone());
        let index = modules.zip(0..).collect();
        Self { sources, index }
    }

    pub(super) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Returns the paths from the crate's root on that a file uses.
    pub(super) fn paths_of(&self, source: &Source) -> Vec<Vec<String>> {
        let paths = source.used.iter().filter_map(|used| self.absolute(used));
        paths.collect()
    }

    /// Returns which modules use which of their siblings. A module stands for itself and for all modules below it.
    ///
    /// A module that uses an item re-exported by another module uses the module that defines the item.
    pub(super) fn siblings(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut edges: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for source in &self.sources {
            for path in self.paths_of(source) {
                let Some(target) = self.file(&path, 0) else {
                    continue;
                };
                let (from, to) = (&source.module, &target.module);
                let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
                // Otherwise one module is the other, or stands above it.
                if common < from.len() && common < to.len() {
                    let targets = edges.entry(from[..=common].to_vec()).or_default();
                    targets.insert(to[..=common].to_vec());
                }
            }
        }
        edges
    }

    /// Returns each use, by a module, of an item that a module above it defines: the two modules, and the item's path.
    pub(super) fn uses_of_modules_above(&self) -> BTreeSet<(Module, Module, String)> {
        let mut found = BTreeSet::new();
        for source in &self.sources {
            for path in self.paths_of(source) {
                let Some(target) = self.file(&path, 0) else {
                    continue;
                };
                let (from, to) = (&source.module, &target.module);
                if to.len() < from.len() && from.starts_with(to) {
                    found.insert((from.clone(), to.clone(), path.join("::")));
                }
            }
        }
        found
    }

    fn find(&self, module: &[String]) -> Option<&Source> {
        self.index.get(module).map(|at| &self.sources[*at])
    }

    /// Returns the path from the crate's root on, or `None` if the path begins with another crate or a local name.
    fn absolute(&self, used: &Used) -> Option<Vec<String>> {
        let mut module = used.inside.clone();
        let mut path = &used.path[..];
        match path[0].as_str() {
            "crate" => {
                module.clear();
                path = &path[1..];
            }
            "self" => path = &path[1..],
            "super" => {
                while path.first().is_some_and(|segment| segment == "super") {
                    module.pop();
                    path = &path[1..];
                }
            }
            child => {
                let child = [&module[..], &[child.to_owned()]].concat();
                self.find(&child)?;
            }
        }
        module.extend_from_slice(path);
        Some(module)
    }

    /// Returns the file that defines what a path from the root on names.
    fn file(&self, path: &[String], depth: usize) -> Option<&Source> {
        let (length, source) = (0..=path.len())
            .rev()
            .find_map(|length| Some((length, self.find(&path[..length])?)))?;
        let imported = path
            .get(length)
            .and_then(|name| source.imported.get(name))
            // The limit ends a ring of imports.
            .filter(|_| depth < 8)
            .and_then(|used| self.absolute(used));
        match imported {
            Some(path) => self.file(&path, depth + 1),
            None => Some(source),
        }
    }
}

fn module_of(path: &str) -> Module {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let folder = stem.strip_suffix("/mod").unwrap_or(stem);
    match folder {
        "lib" => Module::new(),
        folder => folder.split('/').map(str::to_owned).collect(),
    }
}

/// Collects what a file uses.
struct Reader {
    /// The module whose items are being read: that of the file, or one with a body inside of it.
    inside: Module,
    source: Source,
}

impl Reader {
    fn add(&mut self, path: Vec<String>) {
        let inside = self.inside.clone();
        self.source.used.push(Used { inside, path });
    }

    /// Returns whether a node is for tests only. The lines of such a node do not count.
    fn skips(&mut self, attributes: &[syn::Attribute], node: &impl Spanned) -> bool {
        let is_for_tests = is_for_tests(attributes);
        if is_for_tests {
            let span = node.span();
            self.source.lines -= span.end().line + 1 - span.start().line;
        }
        is_for_tests
    }

    /// Notes the members of a type.
    fn note_members<'a>(&mut self, of: &syn::Ident, members: impl Iterator<Item = &'a syn::Ident>) {
        let members = members.map(|member| format!("{of}::{member}"));
        self.source.members.extend(members);
    }

    /// Spells out a tree of imports.
    fn import(&mut self, tree: &syn::UseTree, stem: &[String]) {
        let with = |name: &syn::Ident| [stem, &[name.to_string()]].concat();
        let (path, name) = match tree {
            syn::UseTree::Path(path) => return self.import(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, stem));
            }
            syn::UseTree::Glob(_) => ([stem, &["*".into()]].concat(), "*".into()),
            syn::UseTree::Name(name) if name.ident == "self" => {
                (stem.to_vec(), stem.last().cloned().unwrap_or_default())
            }
            syn::UseTree::Name(name) => (with(&name.ident), name.ident.to_string()),
            syn::UseTree::Rename(rename) => (with(&rename.ident), rename.rename.to_string()),
        };
        if self.inside == self.source.module {
            let inside = self.inside.clone();
            let path = path.clone();
            self.source.imported.insert(name, Used { inside, path });
        }
        self.add(path);
    }

    /// Collects the paths in the arguments of a macro, which may have any syntax.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // How many colons follow the last segment.
        let mut colons = 0;
        let mut is_after_dollar = false;
        for token in tokens {
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && colons < 2 => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(segment) if colons == 2 && !path.is_empty() => {
                    path.push(segment.to_string());
                }
                other => {
                    self.add_path(&mut path);
                    match other {
                        // `$crate` names this crate to the callers of a macro, which may be any file.
                        TokenTree::Ident(first) if is_after_dollar => {
                            path.push(format!("${first}"));
                        }
                        TokenTree::Ident(first) => path.push(first.to_string()),
                        TokenTree::Group(group) => self.read_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
            colons = 0;
            is_after_dollar = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '$');
        }
        self.add_path(&mut path);
    }

    /// Adds a path unless it has one segment, and clears it.
    fn add_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.add(path.clone());
        }
        path.clear();
    }
}

/// Returns whether attributes keep their node for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|condition| condition == "test")
    })
}

/// Visits each node that declares a type and is not for tests only.
macro_rules! note_types {
    ($($visit:ident $node:ident)*) => {$(
        fn $visit(&mut self, node: &'ast syn::$node) {
            if !self.skips(&node.attrs, node) {
                self.source.types.push(node.ident.to_string());
                visit::$visit(self, node);
            }
        }
    )*};
}

/// Visits each node that is not for tests only.
macro_rules! skip_tests {
    ($($visit:ident $node:ident)*) => {$(
        fn $visit(&mut self, node: &'ast syn::$node) {
            if !self.skips(&node.attrs, node) {
                visit::$visit(self, node);
            }
        }
    )*};
}

impl<'ast> Visit<'ast> for Reader {
    skip_tests! {
        visit_item_const ItemConst
        visit_item_fn ItemFn
        visit_item_macro ItemMacro
        visit_item_static ItemStatic
        visit_impl_item_fn ImplItemFn
        visit_impl_item_const ImplItemConst
        visit_field Field
        visit_local Local
    }

    note_types! {
        visit_item_enum ItemEnum
        visit_item_struct ItemStruct
        visit_item_trait ItemTrait
        visit_item_type ItemType
        visit_item_union ItemUnion
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if let Some(of) = self.source.types.last() {
            let variant = format!("{of}::{}", variant.ident);
            self.source.members.push(variant);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if self.skips(&item.attrs, item) {
            return;
        }
        if let syn::Type::Path(of) = &*item.self_ty
            && let Some(of) = of.path.segments.last()
        {
            let members = item.items.iter().filter_map(|member| match member {
                syn::ImplItem::Fn(method) if !is_for_tests(&method.attrs) => {
                    Some(&method.sig.ident)
                }
                syn::ImplItem::Const(constant) => Some(&constant.ident),
                _ => None,
            });
            self.note_members(&of.ident, members);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inside.push(item.ident.to_string());
        if !self.skips(&item.attrs, item) {
            visit::visit_item_mod(self, item);
        } else if item.content.is_none() {
            self.source.test_modules.push(self.inside.clone());
        }
        self.inside.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !self.skips(&item.attrs, item) {
            self.import(&item.tree, &[]);
        }
    }

    /// A visibility names a module, and uses nothing of it.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string());
            self.add(segments.collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.source.called.push(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.read_tokens(call.tokens.clone());
    }
}
