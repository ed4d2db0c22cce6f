//! A client that keeps what it received.

use std::net::SocketAddr;

use bench::http::{BodyDecoder, parse_response};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole reply, framing removed from its body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Takes the next reply off the front of `input`; `None` when it is not whole.
    pub(crate) fn take(input: &mut BytesMut) -> Option<Self> {
        loop {
            let mut fields = Vec::new();
            let found =
                parse_response(input, |name, value| fields.push((name.to_owned(), String::from_utf8_lossy(value).into_owned())));
            let (head, length) = found.expect("a well-formed head")?;
            let mut rest = input.clone().split_off(length);
            if head.status < 200 {
                *input = rest;
                continue;
            }
            let mut body = BytesMut::new();
            let is_whole = BodyDecoder::new(head.framing).decode(&mut rest, &mut body).expect("a well-formed body");
            return is_whole.then(|| {
                *input = rest;
                Self { status: head.status, fields, body: body.to_vec() }
            });
        }
    }
}

/// One request on a connection of its own.
pub(crate) async fn post(address: SocketAddr, path: &str, fields: &[(&str, &str)], body: &str) -> Reply {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\n{fields}content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).await.expect("sends");
    let mut input = BytesMut::new();
    loop {
        let read = stream.read_buf(&mut input).await.expect("reads");
        if let Some(reply) = Reply::take(&mut input) {
            assert!(input.is_empty(), "bytes after the reply: {:?}", String::from_utf8_lossy(&input));
            return reply;
        }
        assert!(read > 0, "the reply was cut after {:?}", String::from_utf8_lossy(&input));
    }
}

/// Runs all futures at once.
pub(crate) async fn all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        waiting.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => {
                done.push(value);
                false
            }
            std::task::Poll::Pending => true,
        });
        if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done
}
