//! The writes of a leader: snapshots, and what it keeps for the next leader.

use etcd_client::{Compare, CompareOp, DeleteOptions, TxnOp};

use super::election::Term;
use super::store::{EtcdStore, Head, within};
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::StoreError;

/// Largest piece of a snapshot. etcd refuses requests above 1.5 MiB unless it is told otherwise.
const PIECE: usize = 1 << 20;
/// Generations kept in etcd: readers that are slow, and a look at what changed last. Each
/// controller and data plane keeps more on its own disk, while etcd holds everything in memory.
const KEPT: usize = 8;

/// What a leader keeps for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// Weights set by hand.
    Pins,
    /// Operators' orders about engines.
    Orders,
}

impl Document {
    /// Its key in etcd, and the name of its file without the ending.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pins => "pins",
            Self::Orders => "orders",
        }
    }
}

impl EtcdStore {
    /// Publishes a sealed snapshot as the leader of `term`: pieces first, then the head.
    ///
    /// Errors: another controller leads, or the head is not below this snapshot's generation:
    /// nothing was published. Or etcd does not answer: then it may have been published or not, and
    /// this generation must not be used again for anything else.
    pub async fn publish(&self, term: &Term, snapshot: &Snapshot) -> Result<(), StoreError> {
        let generation = Generation(snapshot.generation);
        let json = snapshot.to_json();
        let pieces = json.chunks(PIECE);
        let head = Head { generation, pieces: pieces.len() };
        for (number, piece) in pieces.enumerate() {
            let put = TxnOp::put(self.piece(generation, number), piece, None);
            self.guarded(term, "write a snapshot", vec![], vec![put]).await?;
        }
        let rises = Compare::value(self.key("head"), CompareOp::Less, head.to_value());
        let put = TxnOp::put(self.key("head"), head.to_value(), None);
        self.guarded(term, "publish a snapshot", vec![rises], vec![put]).await?;
        if let Err(error) = self.forget_old(term).await {
            tracing::debug!(%error, "old snapshots stay in etcd until the next one");
        }
        Ok(())
    }

    async fn forget_old(&self, term: &Term) -> Result<(), StoreError> {
        let mut generations: Vec<Generation> = self.pieces().await?.into_iter().map(|(generation, _)| generation).collect();
        generations.dedup();
        let Some(oldest) = generations.len().checked_sub(KEPT).filter(|&excess| excess > 0).map(|first| generations[first])
        else {
            return Ok(());
        };
        let range = DeleteOptions::new().with_range(self.piece(oldest, 0));
        let delete = TxnOp::delete(self.key("snapshots/"), Some(range));
        self.guarded(term, "forget old snapshots", vec![], vec![delete]).await
    }

    /// Keeps a document for the next leader.
    ///
    /// Errors: another controller leads, or etcd does not answer.
    pub async fn keep(&self, term: &Term, document: Document, json: &[u8]) -> Result<(), StoreError> {
        let put = TxnOp::put(self.key(document.name()), json, None);
        self.guarded(term, "keep what operators have set", vec![], vec![put]).await
    }

    /// The document that the last leader kept, if there was one.
    ///
    /// Errors: etcd does not answer.
    pub async fn kept(&self, document: Document) -> Result<Option<Vec<u8>>, StoreError> {
        let mut client = self.client.kv_client();
        let mut answer = within("read what operators have set", client.get(self.key(document.name()), None)).await?;
        Ok(answer.take_kvs().pop().map(|kv| kv.value().to_vec()))
    }
}
