//! The configuration of `ilb`: every clock and every bound has its default.

use std::net::SocketAddr;
use std::path::Path;

use crate::faults::fleet::Fleet;

/// Where one cluster's `ilb` listens and keeps its files.
pub(in crate::faults) struct Place<'a> {
    pub(in crate::faults) front: SocketAddr,
    pub(in crate::faults) admin: SocketAddr,
    pub(in crate::faults) control: SocketAddr,
    pub(in crate::faults) folder: &'a Path,
}

/// The text of `ilb.toml` for clusters of equal demand; the first one's proxy is at `place`.
pub(in crate::faults) fn config(fleet: &Fleet, clusters: &[&str], engines: &[SocketAddr], place: &Place<'_>) -> String {
    let Place { front, admin, control, folder } = place;
    let folder = folder.display();
    let demand: Vec<String> = fleet.classes.iter().map(|class| format!("{} = {:?}", class.name, class.demand_rps)).collect();
    let cluster =
        |name: &&str| format!("[[cluster]]\nname = \"{name}\"\nregion = \"here\"\ndemand_rps = {{ {} }}\n\n", demand.join(", "));
    let models: Vec<String> = fleet.models().iter().map(|model| format!("\"{model}\"")).collect();
    let engine = |(number, address): (usize, &SocketAddr)| {
        format!(
            "[[engine]]\nname = \"e{number}\"\nregion = \"here\"\naddress = \"{address}\"\nmodels = [{}]\nprofile = \"equal\"\n\n",
            models.join(", ")
        )
    };
    let class = |class: &crate::faults::fleet::Class| {
        format!(
            "[[class]]\nname = \"{}\"\nmodel = \"{}\"\npriority = {}\noutput_tokens = {}\n\n",
            class.name, class.model, class.priority, class.output_tokens
        )
    };
    let clusters: String = clusters.iter().map(cluster).collect();
    let engines: String = engines.iter().enumerate().map(engine).collect();
    let classes: String = fleet.classes.iter().map(class).collect();
    let profile = fleet.profile();
    format!(
        r#"{clusters}{engines}{classes}{profile}[rtt_ms.here]
here = 0.1

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::fleet::Class;

    #[test]
    fn the_configuration_is_accepted_and_says_what_the_fleet_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let small = Class { name: "small", model: "tiny", priority: 3, demand_rps: 2.0, output_tokens: 4 };
        let mut fleet = Fleet::new(2, 100.0, vec![Class::chat(50.0), small]);
        fleet.believed_rps = 30.0;
        let place = Place { front: address(1), admin: address(2), control: address(3), folder: folder.path() };
        let text = config(&fleet, &["a", "b"], &[address(4), address(5)], &place);
        let file = folder.path().join("ilb.toml");
        std::fs::write(&file, text).expect("writable");
        let config = router_user::config::load(&file).expect("accepted");
        assert_eq!((config.fleet.engines.len(), config.fleet.clusters.len(), config.fleet.classes.len()), (2, 2, 2));
        assert_eq!(config.fleet.engines[1].models, ["demo", "tiny"]);
        assert_eq!(config.fleet.clusters[1].demand_rps, [50.0, 2.0]);
    }
}
