//! Windows' event log.

use std::io;
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, ERROR_NO_MORE_ITEMS};
use windows_sys::Win32::System::EventLog::{
    EVT_HANDLE, EvtClose, EvtNext, EvtQuery, EvtQueryChannelPath, EvtQueryReverseDirection, EvtRender,
    EvtRenderEventXml,
};

use super::wide::{check, is, text_in, wide};

/// Number of events that are fetched at once.
const BATCH: u32 = 32;
/// Time limit for Windows to fetch a batch of events, in milliseconds.
const FETCH_TIMEOUT_MS: u32 = 10_000;

/// Handle of a query or an event.
struct Handle(EVT_HANDLE);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and is closed once.
        unsafe { EvtClose(self.0) };
    }
}

/// Events of a channel that match a query, newest first, each as XML.
pub(super) fn events(channel: &str, query: &str, limit: usize) -> io::Result<Vec<String>> {
    let (channel, query) = (wide(channel)?, wide(query)?);
    let flags = EvtQueryChannelPath | EvtQueryReverseDirection;
    // SAFETY: both texts end with a zero; the null session is this host.
    let found = unsafe { EvtQuery(0, channel.as_ptr(), query.as_ptr(), flags) };
    if found == 0 {
        return Err(io::Error::last_os_error());
    }
    let found = Handle(found);
    let mut events = Vec::new();
    while events.len() < limit {
        let (mut batch, mut count): ([EVT_HANDLE; BATCH as usize], u32) = ([0; BATCH as usize], 0);
        // SAFETY: the query is open; the array has the passed length.
        let next = check(unsafe { EvtNext(found.0, BATCH, batch.as_mut_ptr(), FETCH_TIMEOUT_MS, 0, &raw mut count) });
        match next {
            Ok(()) => {}
            Err(e) if is(&e, ERROR_NO_MORE_ITEMS) => break,
            Err(e) => return Err(e),
        }
        // Wraps all handles, so that each is closed.
        let batch: Vec<Handle> = batch.into_iter().take(count as usize).map(Handle).collect();
        for event in batch.iter().take(limit - events.len()) {
            events.push(xml(event)?);
        }
    }
    Ok(events)
}

fn xml(event: &Handle) -> io::Result<String> {
    let render = |size: u32, buffer: *mut u16| {
        let (mut used, mut properties) = (0, 0);
        // SAFETY: the event is open; the buffer has the passed size.
        let rendered = check(unsafe {
            EvtRender(0, event.0, EvtRenderEventXml, size, buffer.cast(), &raw mut used, &raw mut properties)
        });
        (rendered, used)
    };
    let needed = match render(0, null_mut()) {
        (Err(e), _) if !is(&e, ERROR_INSUFFICIENT_BUFFER) => return Err(e),
        (_, needed) => needed,
    };
    let mut buffer = vec![0_u16; (needed as usize).div_ceil(2)];
    render(needed.next_multiple_of(2), buffer.as_mut_ptr()).0?;
    Ok(text_in(&buffer))
}
