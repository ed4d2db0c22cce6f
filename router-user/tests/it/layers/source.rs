//! The modules of a crate and who names what in them, read from the source text.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// Source files by their path below the crate's `src`.
pub(super) type Tree = BTreeMap<String, String>;

/// A module's path; the first part is the crate's root file.
type Key = Vec<String>;

/// Imports that lead to imports are followed this far.
const IMPORTS_MAX: usize = 16;

/// One file names an item that another file defines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) line: usize,
    /// As written in `from`.
    pub(super) path: String,
}

/// A function, for its length; tests are left out.
pub(super) struct Function {
    pub(super) file: String,
    pub(super) name: String,
    pub(super) first_line: usize,
    pub(super) last_line: usize,
}

#[derive(Default)]
struct Module {
    file: String,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// Imported names and where they come from; re-exports are imports that others may follow.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules of which everything is imported.
    globs: Vec<Vec<String>>,
}

/// A path as written in a module.
struct Mention {
    module: Key,
    segments: Vec<String>,
    line: usize,
}

/// Everything that is known of the crates of one `src` folder.
#[derive(Default)]
pub(super) struct Source {
    modules: BTreeMap<Key, Module>,
    mentions: Vec<Mention>,
    pub(super) functions: Vec<Function>,
}

/// What a path leads to.
enum Target {
    Item(String),
    Module(Key),
}

impl Source {
    /// Reads the library (`lib.rs`) and the program (`main.rs`), as far as they are there, with
    /// every module they declare.
    pub(super) fn read(tree: &Tree) -> Self {
        let mut source = Self::default();
        for root in ["lib.rs", "main.rs"] {
            if tree.contains_key(root) {
                source.read_file(tree, vec![root.to_owned()], root, "");
            }
        }
        source
    }

    /// Reads one file, whose children lie in `folder`.
    fn read_file(&mut self, tree: &Tree, key: Key, file: &str, folder: &str) {
        let text = &tree[file];
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut reader = Reader { source: self, module: key, file, declared: Vec::new() };
        reader.source.modules.insert(reader.module.clone(), Module { file: file.to_owned(), ..Module::default() });
        reader.visit_file(&parsed);
        for (key, below) in reader.declared {
            let stem = format!("{folder}{below}");
            let found = [format!("{stem}.rs"), format!("{stem}/mod.rs")].into_iter().find(|file| tree.contains_key(file));
            let found = found.unwrap_or_else(|| panic!("{file} declares {stem}, which has no file"));
            self.read_file(tree, key, &found, &format!("{stem}/"));
        }
    }

    /// Every naming of an item of another file, once per pair of files and line.
    pub(super) fn edges(&self) -> BTreeSet<Edge> {
        let mut edges = BTreeSet::new();
        for mention in &self.mentions {
            let from = &self.modules[&mention.module].file;
            let to = match self.resolve(&mention.module, &mention.segments, 0) {
                Some(Target::Item(to)) => to,
                // A module with a file of its own is named for what it holds; a mod.rs only leads
                // on.
                Some(Target::Module(key)) if !self.modules[&key].file.ends_with("mod.rs") => self.modules[&key].file.clone(),
                _ => continue,
            };
            if to != *from && to != "lib.rs" {
                edges.insert(Edge { from: from.clone(), to, line: mention.line, path: mention.segments.join("::") });
            }
        }
        edges
    }

    fn resolve(&self, from: &Key, segments: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = segments.split_first()?;
        if depth > IMPORTS_MAX {
            return None;
        }
        let library = vec!["lib.rs".to_owned()];
        match first.as_str() {
            "crate" => self.walk(&from[..1].to_vec(), rest, depth),
            "self" => self.walk(from, rest, depth),
            "super" => {
                let up = rest.iter().take_while(|segment| *segment == "super").count();
                let parent = from.len().checked_sub(1 + up).filter(|&length| length > 0)?;
                self.walk(&from[..parent].to_vec(), &rest[up..], depth)
            }
            "router_user" if self.modules.contains_key(&library) => self.walk(&library, rest, depth),
            _ => self.walk(from, segments, depth),
        }
    }

    /// Follows `segments` down from a module.
    fn walk(&self, key: &Key, segments: &[String], depth: usize) -> Option<Target> {
        let module = self.modules.get(key)?;
        let Some((first, rest)) = segments.split_first() else { return Some(Target::Module(key.clone())) };
        // A function may be named as a module is: the end of a path is the function.
        if module.items.contains(first) && (rest.is_empty() || !module.children.contains(first)) {
            return Some(Target::Item(module.file.clone()));
        }
        if module.children.contains(first) {
            let child = [key.as_slice(), std::slice::from_ref(first)].concat();
            return self.walk(&child, rest, depth);
        }
        if let Some(import) = module.imports.get(first) {
            return match self.resolve(key, import, depth + 1)? {
                Target::Module(key) => self.walk(&key, rest, depth + 1),
                item => Some(item),
            };
        }
        module.globs.iter().find_map(|glob| match self.resolve(key, glob, depth + 1)? {
            Target::Module(key) if depth < IMPORTS_MAX => self.walk(&key, segments, depth + 1),
            _ => None,
        })
    }
}

/// Collects what one file declares, imports and names.
struct Reader<'s> {
    source: &'s mut Source,
    module: Key,
    file: &'s str,
    /// Modules with files of their own: their keys, and their paths below this file's folder.
    declared: Vec<(Key, String)>,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.source.modules.get_mut(&self.module).expect("entered before its items")
    }

    fn mention(&mut self, segments: Vec<String>, line: usize) {
        self.source.mentions.push(Mention { module: self.module.clone(), segments, line });
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let extended = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &extended(&path.ident)),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(tree, before)),
            UseTree::Glob(glob) => {
                self.module().globs.push(before.to_vec());
                return self.mention(before.to_vec(), glob.span().start().line);
            }
            UseTree::Name(name) if name.ident == "self" => (before.last().cloned().unwrap_or_default(), before.to_vec()),
            UseTree::Name(name) => (name.ident.to_string(), extended(&name.ident)),
            UseTree::Rename(rename) if rename.ident == "self" => (rename.rename.to_string(), before.to_vec()),
            UseTree::Rename(rename) => (rename.rename.to_string(), extended(&rename.ident)),
        };
        self.module().imports.insert(name, path.clone());
        self.mention(path, tree.span().start().line);
    }

    /// Paths of two names or more in the text of a macro's call, which is no syntax tree.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, sign: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == sign);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(first) => {
                    let (mut segments, line) = (vec![first.to_string()], first.span().start().line);
                    while is(at + 1, ':')
                        && is(at + 2, ':')
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        segments.push(next.to_string());
                        at += 3;
                    }
                    if segments.len() > 1 {
                        self.mention(segments, line);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first_line, last_line) = (signature.span().start().line, block.span().end().line);
        let name = signature.ident.to_string();
        self.source.functions.push(Function { file: self.file.to_owned(), name, first_line, last_line });
    }
}

/// Whether something is there in tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().trim() == "test");
        is_cfg || attribute.path().is_ident("test")
    })
}

fn name_and_attributes(item: &Item) -> (Option<String>, &[Attribute]) {
    match item {
        Item::Const(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Enum(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Fn(i) => (Some(i.sig.ident.to_string()), &i.attrs),
        Item::Static(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Struct(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Trait(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Type(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Union(i) => (Some(i.ident.to_string()), &i.attrs),
        Item::Macro(i) => (i.ident.as_ref().map(syn::Ident::to_string), &i.attrs),
        Item::Impl(i) => (None, &i.attrs),
        Item::Mod(i) => (None, &i.attrs),
        Item::Use(i) => (None, &i.attrs),
        _ => (None, &[]),
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (name, attributes) = name_and_attributes(item);
        if is_test(attributes) {
            return;
        }
        self.module().items.extend(name);
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        self.module().children.insert(name.clone());
        let key = [self.module.as_slice(), std::slice::from_ref(&name)].concat();
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            // A file of another crate's; it is read there.
            return;
        }
        let Some((_, items)) = &item.content else {
            // Below modules that are written inside this file, a folder each.
            let depth = self.source.modules.iter().filter(|(known, m)| self.module.starts_with(known) && m.file == self.file);
            let inside = depth.count().saturating_sub(1);
            let below = [&self.module[self.module.len() - inside..], &[name]].concat().join("/");
            return self.declared.push((key, below));
        };
        self.source.modules.insert(key.clone(), Module { file: self.file.to_owned(), ..Module::default() });
        let outer = std::mem::replace(&mut self.module, key);
        items.iter().for_each(|item| self.visit_item(item));
        self.module = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[]);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.mention(segments, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    /// `pub(in PATH)` names who may look, and needs nothing of it.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}
