//! Configurations for one cluster in front of engines of one kind: what measurements and tests
//! need.

use std::net::SocketAddr;
use std::path::Path;

/// One cluster, its engines, and where its files go.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Where clients connect.
    pub front: SocketAddr,
    /// Where `/metrics` is.
    pub admin: SocketAddr,
    /// Where the control plane serves snapshots.
    pub control: SocketAddr,
    /// Folder of the socket and the snapshots.
    pub folder: &'a Path,
    pub engines: &'a [(String, SocketAddr)],
    pub model: &'a str,
}

impl Site<'_> {
    /// The text of `ilb.toml`. Capacities are out of reach of the demand, so that the plan splits
    /// evenly and sheds nothing.
    pub fn config(&self) -> String {
        let Self { front, admin, control, model, .. } = self;
        let folder = self.folder.display();
        let engine = |(name, address): &(String, SocketAddr)| {
            format!(
                "[[engine]]\nname = \"{name}\"\nregion = \"here\"\naddress = \"{address}\"\nmodels = [\"{model}\"]\nprofile = \"fast\"\n\n"
            )
        };
        let engines: String = self.engines.iter().map(engine).collect();
        format!(
            r#"[[cluster]]
name = "front"
region = "here"
demand_rps = {{ chat = 1000 }}

{engines}[rtt_ms.here]
here = 0.1

[profile.fast]
capacity_rps = 1000000
ttft_ms = [[0, 1], [1000000, 1000]]
tbot_ms = [[0, 1], [1000000, 2]]

[[class]]
name = "chat"
model = "{model}"
output_tokens = 16

[proxy]
listen = ["{front}"]
workers = 1

[admin]
socket = "{folder}/ilb.sock"
listen = "{admin}"

[control]
listen = "{control}"

[store]
dir = "{folder}/snapshots"
"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_accepted() {
        let folder = tempfile::tempdir().expect("a folder");
        let engines: Vec<_> = (0..2).map(|n| (format!("e{n}"), SocketAddr::from(([127, 0, 0, 1], 18001 + n)))).collect();
        let site = Site {
            front: ([127, 0, 0, 1], 8080).into(),
            admin: ([127, 0, 0, 1], 9900).into(),
            control: ([127, 0, 0, 1], 9901).into(),
            folder: folder.path(),
            engines: &engines,
            model: "demo",
        };
        let file = folder.path().join("ilb.toml");
        std::fs::write(&file, site.config()).expect("writable");
        let config = router_user::config::load(&file).expect("accepted");
        assert_eq!((config.fleet.engines.len(), config.fleet.clusters.len()), (2, 1));
    }
}
