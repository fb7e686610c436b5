//! Text for Windows' interfaces: UTF-16 with a zero at the end.

use std::io;

use windows_sys::Win32::Foundation::ERROR_FILE_NOT_FOUND;

/// Converts `text` to UTF-16 with a zero at the end. A zero inside would cut it short, so it is refused.
pub(super) fn wide(text: &str) -> io::Result<Vec<u16>> {
    if text.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the text has a zero character in it"));
    }
    Ok(text.encode_utf16().chain([0]).collect())
}

/// Converts a list to the format of `REG_MULTI_SZ`: each text with a zero at the end, and one more zero after the last.
pub(super) fn wide_list<S: AsRef<str>>(texts: &[S]) -> io::Result<Vec<u16>> {
    let mut list = Vec::new();
    for text in texts {
        list.extend(wide(text.as_ref())?);
    }
    if list.is_empty() {
        list.push(0);
    }
    list.push(0);
    Ok(list)
}

/// Returns the text at `pointer`, empty for null.
///
/// # Safety
/// `pointer` is null or points to UTF-16 with a zero at the end, which no other thread changes meanwhile.
pub(super) unsafe fn text(pointer: *const u16) -> String {
    // SAFETY: as promised by the caller.
    String::from_utf16_lossy(if pointer.is_null() { &[] } else { unsafe { units(pointer) } })
}

/// Returns the texts of a list in the format of [`wide_list`].
///
/// # Safety
/// `pointer` is null or points to such a list, which no other thread changes meanwhile.
pub(super) unsafe fn text_list(mut pointer: *const u16) -> Vec<String> {
    let mut list = Vec::new();
    // SAFETY: the caller promises that the list ends with an empty text; no more is read.
    unsafe {
        while !pointer.is_null() && *pointer != 0 {
            let text = units(pointer);
            list.push(String::from_utf16_lossy(text));
            pointer = pointer.add(text.len() + 1);
        }
    }
    list
}

/// Returns the units of a text, without the zero at its end.
///
/// # Safety
/// `pointer` points to UTF-16 with a zero at the end, which no other thread changes while the result is used.
unsafe fn units<'a>(pointer: *const u16) -> &'a [u16] {
    let mut length = 0;
    // SAFETY: the caller promises a zero at the end; no more is read.
    unsafe {
        while *pointer.add(length) != 0 {
            length += 1;
        }
        std::slice::from_raw_parts(pointer, length)
    }
}

/// Returns the text in a buffer, up to the first zero.
pub(super) fn text_in(buffer: &[u16]) -> String {
    let length = buffer.iter().position(|&u| u == 0).unwrap_or(buffer.len());
    String::from_utf16_lossy(&buffer[..length])
}

/// Checks the result of a call that returns 0 for failure.
pub(super) fn check(result: i32) -> io::Result<()> {
    if result == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Checks the result of a call that returns the error code.
pub(super) fn check_code(code: u32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(error(code)),
    }
}

/// Creates the error with this Windows code.
pub(super) fn error(code: u32) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

/// Reports whether `error` is the one with this Windows code.
pub(super) fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

/// Converts an error in the form of an HRESULT to the plain Windows error, so that its kind is known.
pub(super) fn plain<E: Into<io::Error>>(error: E) -> io::Error {
    let error = error.into();
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(code) if code & 0xffff_0000 == 0x8007_0000 => self::error(code & 0xffff),
        _ => error,
    }
}

/// Returns `None` if the result is the error for a missing key or value of the registry.
pub(super) fn if_found<T, E: Into<io::Error>>(result: Result<T, E>) -> io::Result<Option<T>> {
    match result.map_err(plain) {
        Err(e) if is(&e, ERROR_FILE_NOT_FOUND) => Ok(None),
        result => result.map(Some),
    }
}
