//! Failures that come from this machine and not from the other side of a connection.

use std::error::Error;
use std::io;

/// Whether an error, or one that it was caused by, says that this machine has no descriptors, ports
/// or memory left. It says nothing about whoever was to be reached.
pub fn is_ours(error: &(dyn Error + 'static)) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let code = |error: &(dyn Error + 'static)| error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    causes.any(|error| code(error).is_some_and(|code| shortages.contains(&code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_own_resources_is_found_below_other_errors_and_a_refusal_is_none() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to connect")]
        struct Outer(#[source] io::Error);

        let of = |code| Outer(io::Error::from_raw_os_error(code));
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL] {
            assert!(is_ours(&of(code)) && is_ours(&of(code).0), "{code}");
        }
        for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES, libc::EPERM] {
            assert!(!is_ours(&of(code)) && !is_ours(&of(code).0), "{code}");
        }
        assert!(!is_ours(&io::Error::from(io::ErrorKind::TimedOut)));
    }
}
