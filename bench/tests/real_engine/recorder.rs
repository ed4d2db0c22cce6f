//! A relay that keeps every byte.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use bench::http::{BodyDecoder, parse_request};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::Reply;

/// Everything that went through one address.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    conversations: RefCell<Vec<Rc<Conversation>>>,
}

/// The bytes of one connection.
#[derive(Default)]
struct Conversation {
    up: RefCell<Vec<u8>>,
    down: RefCell<Vec<u8>>,
}

/// One request with its reply.
pub(crate) struct Exchange {
    pub(crate) path: String,
    pub(crate) request_fields: Vec<(String, String)>,
    pub(crate) request_body: Vec<u8>,
    pub(crate) reply: Reply,
}

impl Recorder {
    /// Relays to `to` from a port of its own.
    pub(crate) async fn start(to: SocketAddr) -> Rc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let recorder = Rc::new(Self { address, conversations: RefCell::default() });
        let kept = Rc::clone(&recorder);
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                let conversation = Rc::new(Conversation::default());
                kept.conversations.borrow_mut().push(Rc::clone(&conversation));
                tokio::task::spawn_local(async move {
                    let server = TcpStream::connect(to).await.expect("the engine is up");
                    let (client, server) = (client.into_split(), server.into_split());
                    let up = copy(client.0, server.1, &conversation.up);
                    let down = copy(server.0, client.1, &conversation.down);
                    tokio::join!(up, down);
                });
            }
        });
        recorder
    }

    /// All whole exchanges so far.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        for conversation in self.conversations.borrow().iter() {
            let mut up = BytesMut::from(&conversation.up.borrow()[..]);
            let mut down = BytesMut::from(&conversation.down.borrow()[..]);
            loop {
                let mut request_fields = Vec::new();
                let head = parse_request(&up, |name, value| {
                    request_fields.push((name.to_owned(), String::from_utf8_lossy(value).into_owned()));
                });
                let Some((head, length)) = head.expect("ilb sends well-formed heads") else { break };
                let _ = up.split_to(length);
                let mut body = BytesMut::new();
                let is_whole = BodyDecoder::new(head.framing).decode(&mut up, &mut body).expect("ilb sends well-formed bodies");
                let Some(reply) = is_whole.then(|| Reply::take(&mut down)).flatten() else { break };
                exchanges.push(Exchange { path: head.path, request_fields, request_body: body.to_vec(), reply });
            }
        }
        exchanges
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, kept: &RefCell<Vec<u8>>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // Kept before it is passed on: a client that has it can rely on its being kept.
        kept.borrow_mut().extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
