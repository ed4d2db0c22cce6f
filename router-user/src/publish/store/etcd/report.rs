//! Demand reports: each data plane puts its last one under its own key, and every controller
//! watches them all.

use std::time::Duration;

use etcd_client::{EventType, GetOptions, KeyValue, PutOptions, WatchOptions, WatchStream};

use super::store::{EtcdStore, PAGE, after_all, failed, within};
use crate::protocol::DemandReport;
use crate::publish::store::StoreError;

/// Time after which etcd drops the report of a data plane that no longer reports.
const REPORT_LEASE: Duration = Duration::from_secs(60);

impl EtcdStore {
    /// Replaces this data plane's last demand report.
    ///
    /// Errors: etcd does not answer.
    pub async fn report(&self, report: &DemandReport) -> Result<(), StoreError> {
        let mut held = self.lease.lock().await;
        let alive = match *held {
            None => None,
            Some(id) => match within("prolong a lease", self.client.lease_client().keep_alive(id)).await {
                Ok(_) => Some(id),
                Err(StoreError::Etcd { source, .. }) if matches!(*source, etcd_client::Error::LeaseKeepAliveError(_)) => None,
                Err(error) => return Err(error),
            },
        };
        let lease = match alive {
            Some(id) => id,
            None => within("take a lease", self.client.lease_client().grant(REPORT_LEASE.as_secs() as i64, None)).await?.id(),
        };
        *held = Some(lease);
        let key = self.key(&format!("reports/{}/{}", report.cluster, report.instance));
        let json = serde_json::to_vec(report).expect("a report has only strings and numbers");
        within("report demand", self.client.kv_client().put(key, json, Some(PutOptions::new().with_lease(lease)))).await.map(drop)
    }

    /// Follows the demand reports of all data planes.
    pub fn reports(&self) -> Reports {
        Reports { store: self.clone(), revision: 0, watch: None }
    }
}

/// The reports as they come in, each once, across lost connections and compactions.
pub struct Reports {
    store: EtcdStore,
    /// Everything up to this revision has been given out.
    revision: i64,
    watch: Option<WatchStream>,
}

impl Reports {
    /// The reports since the last call; waits for the first.
    ///
    /// Errors: etcd does not answer; the next call goes on where this one was.
    pub async fn next(&mut self) -> Result<Vec<DemandReport>, StoreError> {
        loop {
            let start = self.store.key("reports/");
            let Some(watch) = &mut self.watch else {
                // After a gap the last report of each data plane is still there. Earlier ones are
                // lost, and an estimate of a rate tolerates that.
                let options = GetOptions::new().with_range(after_all(&start)).with_limit(PAGE);
                let mut answer = within("list reports", self.store.client.kv_client().get(start.clone(), Some(options))).await?;
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                let watch = self.store.watch(start, revision, WatchOptions::new().with_prefix()).await?;
                let fresh = |kv: &KeyValue| kv.mod_revision() > self.revision;
                let reports: Vec<DemandReport> = answer.take_kvs().iter().filter(|kv| fresh(kv)).filter_map(read).collect();
                (self.watch, self.revision) = (Some(watch), revision);
                if reports.is_empty() {
                    continue;
                }
                return Ok(reports);
            };
            let message = match watch.message().await {
                Ok(Some(message)) if !message.canceled() => message,
                Ok(_) => {
                    self.watch = None;
                    continue;
                }
                Err(source) => {
                    self.watch = None;
                    return Err(failed("watch the reports", source));
                }
            };
            self.revision = message.header().map_or(self.revision, |header| self.revision.max(header.revision()));
            let puts = message.events().iter().filter(|event| event.event_type() == EventType::Put);
            let reports: Vec<DemandReport> = puts.filter_map(|event| read(event.kv()?)).collect();
            if !reports.is_empty() {
                return Ok(reports);
            }
        }
    }
}

fn read(kv: &KeyValue) -> Option<DemandReport> {
    match serde_json::from_slice(kv.value()) {
        Ok(report) => Some(report),
        Err(error) => {
            tracing::warn!(key = %String::from_utf8_lossy(kv.key()), %error, "passing over what is no demand report");
            None
        }
    }
}
