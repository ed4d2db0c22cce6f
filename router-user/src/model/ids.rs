//! Dense ids of the fleet's parts: each is an index into the fleet's own list.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u16);

        impl $name {
            /// As an index into the fleet's list.
            pub fn index(self) -> usize {
                usize::from(self.0)
            }

            /// From an index into the fleet's list; the configuration bounds every list well below
            /// `u16::MAX`.
            pub fn of(index: usize) -> Self {
                Self(u16::try_from(index).expect("lists of a fleet are bounded by the configuration"))
            }
        }
    };
}

id!(
    /// A front-end cluster.
    ClusterId
);
id!(
    /// An engine.
    EngineId
);
id!(
    /// A class of requests.
    ClassId
);
