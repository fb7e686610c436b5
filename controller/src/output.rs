//! Answers of commands, on standard output.

use std::io::{self, Write as _};

/// Prints a text. Who reads only the first lines, as `head` does, has what it wants.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
