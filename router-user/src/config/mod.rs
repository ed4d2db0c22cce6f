//! The configuration file: every mistake is reported at once, with its place and the wanted form.
//!
//! In reading order:
//!
//! 1. `key` says what a key is made of; `keys` lists them all, with defaults and reasons.
//! 2. `reader` walks the TOML with its places, checks each value by its key and collects mistakes.
//! 3. `raw` is the fleet as the file says it; `resolve` looks names up and fills in defaults.
//! 4. `types` is the result, [`Config`], which cannot hold an illegal value; `load` is the way
//!    there.
//! 5. `render` prints a [`Config`] in the form it was read from; `reference` makes
//!    docs/configuration.md of the keys; `folders` places what the file does not.

mod errors;
mod folders;
mod key;
mod keys;
mod load;
mod raw;
mod reader;
mod reference;
mod render;
mod resolve;
mod types;

#[cfg(test)]
mod tests;

pub use errors::{ConfigErrors, Mistake};
pub use folders::Folders;
pub use load::{load, parse};
pub(crate) use reader::suggest;
pub use reference::reference;
pub use types::{Admin, Config, Control, Kernel, ProxyConfig, Store};
