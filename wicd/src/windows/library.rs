//! Libraries of Windows that a host may lack.

use std::io;
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW, SetDefaultDllDirectories,
};

use super::wide::{check, wide};

/// Restricts the search for libraries to the system directory of Windows, for the whole process. Libraries of the program's import table are loaded
/// before; only administrators can put libraries beside the program.
///
/// # Errors
/// Fails when Windows refuses the setting.
pub fn from_system_only() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { SetDefaultDllDirectories(LOAD_LIBRARY_SEARCH_SYSTEM32) })
}

/// Library of Windows itself. It stays loaded until the process ends.
pub struct Library(HMODULE);

impl Library {
    /// Loads a library from the system directory only.
    ///
    /// # Errors
    /// Fails when `name` has a zero in it, or the system directory has no such library.
    pub fn load(name: &str) -> io::Result<Self> {
        let name = wide(name)?;
        // SAFETY: the name ends with a zero.
        let module = unsafe { LoadLibraryExW(name.as_ptr(), null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
        if module.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(module)) }
    }

    /// Returns a function of the library.
    ///
    /// # Errors
    /// Fails when the library has no function of this name.
    ///
    /// # Safety
    /// `F` is the function's type: `unsafe extern "system" fn(…) -> …`.
    pub unsafe fn function<F: Copy>(&self, name: &std::ffi::CStr) -> io::Result<F> {
        const { assert!(size_of::<F>() == size_of::<usize>()) }
        // SAFETY: the module is loaded and the name ends with a zero.
        let address = unsafe { GetProcAddress(self.0, name.as_ptr().cast()) };
        let address = address.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: both have the size of a pointer (checked above), and the caller promises the type.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}
