//! From a file, or its text, to a configuration.

use std::path::Path;

use super::errors::{ConfigErrors, Mistake};
use super::folders::Folders;
use super::reader::Reader;
use super::resolve::{fleet, sections};
use super::types::Config;
use super::{keys, raw, render};

/// Reads and resolves a configuration file.
///
/// Errors: the file cannot be read, or every mistake in it.
pub fn load(file: &Path) -> Result<Config, ConfigErrors> {
    let failed = |mistakes| ConfigErrors { file: file.to_owned(), mistakes };
    let source = std::fs::read_to_string(file)
        .map_err(|error| failed(vec![Mistake { line: 0, path: String::new(), message: format!("cannot be read: {error}") }]))?;
    parse(&source).map_err(failed)
}

/// Resolves the text of a configuration file, with the default folders of this process.
///
/// Errors: every mistake, in the order of their places; never an empty list.
pub fn parse(source: &str) -> Result<Config, Vec<Mistake>> {
    let reader = Reader::new(source);
    // In a broken document a key that seems to be missing may only be hidden: nothing but the
    // syntax is reported.
    let config = if reader.is_clean() { resolve(&reader, &Folders::of_process()) } else { None };
    reader.finish(config)
}

/// Mistakes go to the reader; `None` when a part could not be made, for which a mistake then
/// stands.
fn resolve(reader: &Reader<'_>, folders: &Folders) -> Option<Config> {
    let root = reader.root();
    let fleet = fleet::resolve(&raw::read(reader), reader);
    let control = sections::control(&root.table(&keys::control::TABLE), fleet.as_ref(), reader);
    let config = Some(Config {
        proxy: sections::proxy(&root.table(&keys::proxy::TABLE), reader),
        admin: sections::admin(&root.table(&keys::admin::TABLE), folders),
        store: sections::store(&root.table(&keys::store::TABLE), control.listen, folders),
        kernel: sections::kernel(&root.table(&keys::kernel::TABLE), fleet.as_ref(), reader),
        control,
        fleet: fleet?,
    });
    let tables: Vec<&str> = keys::TABLES.iter().map(|table| table.name).filter(|name| *name != keys::work::TABLE.name).collect();
    root.refuse_others(&tables);
    config
}

impl Config {
    /// The configuration as TOML, with every default spelled out; reading it again gives an equal
    /// [`Config`].
    pub fn to_toml(&self) -> String {
        render::to_toml(self)
    }
}
