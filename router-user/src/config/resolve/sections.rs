//! The tables that stand alone: `[proxy]`, `[admin]`, `[control]`, `[store]` and `[kernel]`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::folders::Folders;
use crate::config::key::Key;
use crate::config::keys;
use crate::config::reader::{At, Reader, Section, suggest};
use crate::config::types::{Admin, Control, Kernel, ProxyConfig, Store};
use crate::model::{ClassId, Fleet};

/// The value of a key, or its default.
impl Key {
    fn whole(&self, section: &Section<'_>) -> u64 {
        section.whole(self).map_or_else(|| self.preset_whole(), |at| at.value)
    }

    fn size(&self, section: &Section<'_>) -> usize {
        usize::try_from(self.whole(section)).unwrap_or(usize::MAX)
    }

    fn number(&self, section: &Section<'_>) -> f64 {
        section.number(self).map_or_else(|| self.preset_number(), |at| at.value)
    }

    fn flag(&self, section: &Section<'_>) -> bool {
        section.flag(self).map_or_else(|| self.preset_flag(), |at| at.value)
    }

    fn duration(&self, section: &Section<'_>) -> Duration {
        section.duration(self).map_or_else(|| self.preset_duration(), |at| at.value)
    }

    fn text(&self, section: &Section<'_>) -> String {
        section.text(self).map_or_else(|| self.preset_text().to_owned(), |at| at.value)
    }

    fn address(&self, section: &Section<'_>) -> SocketAddr {
        section.address(self).map_or_else(|| self.preset_address(), |at| at.value)
    }

    fn preset_address(&self) -> SocketAddr {
        self.preset_text().parse().expect("defaults are legal addresses")
    }
}

impl Default for ProxyConfig {
    /// What an empty file gives.
    fn default() -> Self {
        let reader = Reader::new("");
        proxy(&reader.root().table(&keys::proxy::TABLE), &reader)
    }
}

pub(in crate::config) fn proxy(section: &Section<'_>, reader: &Reader<'_>) -> ProxyConfig {
    use keys::proxy::*;
    let listen = section.addresses(&LISTEN);
    if let Some(At { value, place }) = &listen
        && value.is_empty()
    {
        reader.mistake(place, "is an empty array; wanted at least one address");
    }
    let config = ProxyConfig {
        listen: listen.map_or_else(|| vec![LISTEN.preset_address()], |at| at.value),
        workers: WORKERS.size(section),
        max_connections: MAX_CONNECTIONS.size(section),
        max_head_bytes: MAX_HEAD_BYTES.size(section),
        max_head_fields: MAX_HEAD_FIELDS.size(section),
        max_body_bytes: MAX_BODY_BYTES.size(section),
        max_bodies_bytes: MAX_BODIES_BYTES.size(section),
        max_in_flight_per_engine: MAX_IN_FLIGHT_PER_ENGINE.size(section),
        max_waiting: MAX_WAITING.size(section),
        max_idle_per_engine: MAX_IDLE_PER_ENGINE.size(section),
        max_attempts: MAX_ATTEMPTS.size(section),
        load_factor: LOAD_FACTOR.number(section),
        connect_timeout: CONNECT_TIMEOUT.duration(section),
        ttft_timeout: TTFT_TIMEOUT.duration(section),
        gap_timeout: GAP_TIMEOUT.duration(section),
        client_idle_timeout: CLIENT_IDLE_TIMEOUT.duration(section),
        head_timeout: HEAD_TIMEOUT.duration(section),
        body_gap_timeout: BODY_GAP_TIMEOUT.duration(section),
        min_upload_bytes_per_s: MIN_UPLOAD_BYTES_PER_S.whole(section),
        client_stall_timeout: CLIENT_STALL_TIMEOUT.duration(section),
        min_download_bytes_per_s: MIN_DOWNLOAD_BYTES_PER_S.whole(section),
        engine_idle_timeout: ENGINE_IDLE_TIMEOUT.duration(section),
        max_stored_ids: MAX_STORED_IDS.size(section),
        stored_id_max_age: STORED_ID_MAX_AGE.duration(section),
    };
    section.refuse_unknown(&TABLE);
    config
}

pub(in crate::config) fn admin(section: &Section<'_>, folders: &Folders) -> Admin {
    use keys::admin::*;
    let admin = Admin {
        socket: section.text(&SOCKET).map_or_else(|| folders.socket(), |at| at.value.into()),
        listen: section.address_or_off(&LISTEN).map_or_else(|| Some(LISTEN.preset_address()), |at| at.value),
    };
    section.refuse_unknown(&TABLE);
    admin
}

/// `fleet` is `None` where a mistake in it was found already.
pub(in crate::config) fn control(section: &Section<'_>, fleet: Option<&Fleet>, reader: &Reader<'_>) -> Control {
    use keys::control::*;
    let canary = section.text(&CANARY).zip(fleet).and_then(|(At { value, place }, fleet)| {
        let cluster = fleet.cluster(&value);
        if cluster.is_none() {
            let known = fleet.clusters.iter().map(|c| c.name.as_str());
            reader.mistake(&place, format!("names the unknown cluster {value:?}{}", suggest(&value, known)));
        }
        cluster
    });
    let control = Control {
        period: PERIOD.duration(section),
        listen: LISTEN.address(section),
        headroom_frac: HEADROOM.number(section),
        move_limit_frac: MOVE_LIMIT.number(section),
        measured_rtt: MEASURED_RTT.flag(section),
        health_period: HEALTH_PERIOD.duration(section),
        canary,
        canary_periods: u32::try_from(CANARY_PERIODS.whole(section)).expect("the form is bounded below that"),
        scrape_period: Some(SCRAPE_PERIOD.duration(section)).filter(|period| !period.is_zero()),
    };
    section.refuse_unknown(&TABLE);
    control
}

/// `controller` is `control.listen`.
pub(in crate::config) fn store(section: &Section<'_>, controller: SocketAddr, folders: &Folders) -> Store {
    use keys::store::*;
    let url = section.text(&URL).map(|at| at.value.trim_end_matches('/').to_owned());
    let store = Store {
        dir: section.text(&DIR).map_or_else(|| folders.snapshots(), |at| at.value.into()),
        url: url.unwrap_or_else(|| format!("http://{controller}")),
        etcd: section.addresses(&ETCD).map_or_else(Vec::new, |at| at.value),
        prefix: PREFIX.text(section),
        lease: LEASE.duration(section),
        stale_after: STALE_AFTER.duration(section),
    };
    section.refuse_unknown(&TABLE);
    store
}

/// `fleet` is `None` where a mistake in it was found already.
pub(in crate::config) fn kernel(section: &Section<'_>, fleet: Option<&Fleet>, reader: &Reader<'_>) -> Kernel {
    use keys::kernel::*;
    let class = section.text(&CLASS).zip(fleet).and_then(|(At { value, place }, fleet)| {
        let class = fleet.class(&value);
        if class.is_none() {
            let known = fleet.classes.iter().map(|c| c.name.as_str());
            reader.mistake(&place, format!("names the unknown class {value:?}{}", suggest(&value, known)));
        }
        class
    });
    let kernel = Kernel {
        enabled: ENABLED.flag(section),
        service: SERVICE.address(section),
        class: class.unwrap_or(ClassId(0)),
        pin_dir: PIN_DIR.text(section).into(),
        cgroup: section.text(&CGROUP).map(|at| at.value.into()),
    };
    section.refuse_unknown(&TABLE);
    kernel
}
