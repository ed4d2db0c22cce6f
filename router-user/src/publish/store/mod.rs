//! Where snapshots live between the controller and the data planes.
//!
//! [`DirStore`] keeps them on disk: the controller's own memory across restarts, and a data plane's
//! when everything else is gone. [`HttpStore`] is the controller's endpoint. [`EtcdStore`] is an
//! etcd that controllers and data planes share; it also elects the one controller that publishes.
//! All three are read through [`Store`], and pass the same tests.

mod dir;
mod error;
mod etcd;
mod http;
mod reader;

pub use dir::DirStore;
pub(crate) use dir::write_whole;
pub use error::StoreError;
pub use etcd::{Document, Election, EtcdStore, Reports, Term};
pub use http::HttpStore;
pub use reader::{Held, Store};
