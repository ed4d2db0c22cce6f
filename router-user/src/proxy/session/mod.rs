//! One client connection: its requests, the attempts at engines, the answers.
//!
//! In reading order: `client` reads a request, its body by `receive`, and settles where it goes;
//! `exchange` picks engines until one answers, as far as `resend` allows; `attempt` connects to one
//! engine and sends the request, and `opening` reads what comes back until there is something to
//! pass on, which in a stream `first_content` tells; `forward` passes the answer on, by the framing
//! of `forwarder`. `interrupt` ends waits when the client leaves or a deadline passes, and
//! `reader_watch` tells clients that do not read. `stored` sends requests to the engines that hold
//! what they name.

mod attempt;
mod body;
pub(super) mod client;
mod exchange;
mod faults;
mod first_content;
mod forward;
mod forwarder;
mod interrupt;
mod opening;
mod queue;
mod reader_watch;
mod receive;
mod resend;
mod stored;
