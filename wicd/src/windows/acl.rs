//! Owners and access lists of files.
//!
//! All calls use a handle that was opened without following a link, so that the checked object is the one that is changed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{MetadataExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW, GetSecurityInfo, SDDL_REVISION_1,
    SE_FILE_OBJECT, SE_KERNEL_OBJECT, SE_OBJECT_TYPE,
};
use windows_sys::Win32::Security::{
    ACCESS_ALLOWED_ACE, ACL, DACL_SECURITY_INFORMATION, GetAce, GetSecurityDescriptorControl,
    OWNER_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID, SE_BACKUP_NAME,
    SE_DACL_PROTECTED, SE_RESTORE_NAME, SE_TAKE_OWNERSHIP_NAME, SECURITY_ATTRIBUTES, SetKernelObjectSecurity,
    TOKEN_QUERY, TOKEN_USER, TokenUser,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, CreateDirectoryW, FILE_ATTRIBUTE_DIRECTORY, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_READ_ATTRIBUTES, GetFileInformationByHandle, READ_CONTROL, WRITE_DAC,
    WRITE_OWNER,
};

use super::privilege::{self, Token};
use super::wide::{check, check_code, is, text, wide};
use crate::access::{self, AccessList, Entry, Guard};
use crate::host::{HostError, PathEntry};

/// Type of an access list entry that grants rights; [`DENIED`] is the type of one that denies them.
const ALLOWED: u8 = 0;
const DENIED: u8 = 1;
/// Access list of a file that only SYSTEM and Administrators may use.
const FILE: &str = "O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)";
/// Access list that a directory inherits from a private one, as Windows itself would write it.
const INHERITED_DIRECTORY: &str = "O:BAD:AI(A;OICIID;FA;;;SY)(A;OICIID;FA;;;BA)";
/// Access list that a file inherits from a private directory, as Windows itself would write it.
const INHERITED_FILE: &str = "O:BAD:AI(A;ID;FA;;;SY)(A;ID;FA;;;BA)";

/// Returns the entry at a path; `None` if it does not exist. A link in the last part of the path is not followed.
pub(super) fn place(path: &Path) -> Result<Option<PathEntry>, HostError> {
    let failed = HostError::system("inspect", path.display().to_string());
    match open(path, READ_CONTROL | FILE_READ_ATTRIBUTES).and_then(|file| place_of(&file)) {
        Ok(place) => Ok(Some(place)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// Creates a directory together with its access list. An existing one is left as it is.
pub(super) fn make_guarded(path: &Path, guard: Guard) -> Result<(), HostError> {
    match try_make(path, guard) {
        Err(e) if !is(&e, ERROR_ALREADY_EXISTS) => {
            Err(HostError::system("create directory", path.display().to_string())(e))
        }
        _ => Ok(()),
    }
}

/// Makes Administrators the owner of a file or directory and sets the access list of this guard; a file always becomes private. The content of a
/// directory stays as it is.
pub(super) fn protect(path: &Path, guard: Guard) -> Result<(), HostError> {
    try_protect(path, guard).map_err(HostError::system("restrict access to", path.display().to_string()))
}

/// Makes Administrators the owner of a file or directory, with this access list.
pub(super) fn set_access(path: &Path, list: &AccessList) -> Result<(), HostError> {
    try_set(path, |_| list.text()).map_err(HostError::system("restrict access to", path.display().to_string()))
}

/// Makes Administrators the owner of a directory's content, without `except`, with only the access that a private directory passes on.
pub(super) fn reset_below(path: &Path, except: Option<&Path>) -> Result<(), HostError> {
    try_reset_below(&verbatim(path), except.map(verbatim).as_deref())
}

/// Path in the form that Windows uses without normalizing it, which would cut off a dot or a space at the end of a name.
fn verbatim(path: &Path) -> PathBuf {
    let mut verbatim = OsString::from(r"\\?\");
    verbatim.push(path);
    verbatim.into()
}

fn open(path: &Path, access: u32) -> io::Result<File> {
    OpenOptions::new()
        .access_mode(access)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
        .open(path)
}

/// Opens a file or directory to change it, even if its owner has denied access. A link is opened itself.
fn open_to_change(path: &Path) -> io::Result<File> {
    take_any();
    open(path, READ_CONTROL | WRITE_DAC | WRITE_OWNER | FILE_READ_ATTRIBUTES)
}

/// Enables the privileges of administrators to read, write, take over and delete any file regardless of its access list. A failure is ignored: files
/// with sufficient rights can be changed without them.
pub(super) fn take_any() {
    for name in [SE_TAKE_OWNERSHIP_NAME, SE_RESTORE_NAME, SE_BACKUP_NAME] {
        // SAFETY: the name is one of Windows' own constants.
        let _ = unsafe { privilege::enable(name) };
    }
}

fn place_of(file: &File) -> io::Result<PathEntry> {
    let meta = file.metadata()?;
    let what = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    let (owner, dacl, descriptor) = security(file, SE_FILE_OBJECT, what)?;
    let (mut control, mut revision) = (0, 0);
    // SAFETY: the descriptor is the one that Windows gave.
    check(unsafe { GetSecurityDescriptorControl(descriptor.0, &raw mut control, &raw mut revision) })?;
    // SAFETY: owner and list are in the descriptor, which is still alive.
    let (owner, entries) = unsafe { (sid_text(owner)?, entries(dacl)?) };
    Ok(PathEntry {
        kind: meta.file_type().into(),
        is_own: owner == own_sid()?,
        owner,
        access: AccessList { is_protected: control & SE_DACL_PROTECTED != 0, entries },
    })
}

/// SID of a pipe's owner: the user who created it, or the group Administrators.
pub(super) fn pipe_owner(pipe: &impl AsRawHandle) -> io::Result<String> {
    let (owner, _, _descriptor) = security(pipe, SE_KERNEL_OBJECT, OWNER_SECURITY_INFORMATION)?;
    // SAFETY: the owner is in the descriptor, which is still alive.
    unsafe { sid_text(owner) }
}

/// Owner and access list of an open object, as far as `what` selects them, and the descriptor that holds both.
fn security(object: &impl AsRawHandle, kind: SE_OBJECT_TYPE, what: u32) -> io::Result<(PSID, *mut ACL, Descriptor)> {
    let (mut owner, mut dacl, mut descriptor) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the handle is open; null stands for data that is not requested.
    check_code(unsafe {
        GetSecurityInfo(
            object.as_raw_handle(),
            kind,
            what,
            &raw mut owner,
            null_mut(),
            &raw mut dacl,
            null_mut(),
            &raw mut descriptor,
        )
    })?;
    Ok((owner, dacl, Descriptor(descriptor)))
}

/// Entries of an access list.
///
/// # Safety
/// `dacl` is null or a valid list.
unsafe fn entries(dacl: *const ACL) -> io::Result<Vec<Entry>> {
    if dacl.is_null() {
        // No list: all users have all rights.
        return Ok(vec![Entry::grant(access::EVERYONE, access::ALL, access::TO_ALL)]);
    }
    // SAFETY: the caller promises a valid list.
    let count = unsafe { (*dacl).AceCount };
    (0..count.into())
        .map(|index| {
            let mut pointer = null_mut();
            // SAFETY: the list is valid and has an entry of this index. All kinds of entries begin with header and rights, and a SID follows
            // in entries of the two kinds that are named here.
            unsafe {
                check(GetAce(dacl, index, &raw mut pointer))?;
                let entry = pointer.cast::<ACCESS_ALLOWED_ACE>();
                let header = (*entry).Header;
                let sid = match header.AceType {
                    ALLOWED | DENIED => sid_text((&raw mut (*entry).SidStart).cast())?,
                    _ => String::new(),
                };
                Ok(Entry { sid, rights: (*entry).Mask, flags: header.AceFlags, denies: header.AceType == DENIED })
            }
        })
        .collect()
}

fn try_make(path: &Path, guard: Guard) -> io::Result<()> {
    let descriptor = Descriptor::parse(&AccessList::of(guard).text())?;
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    let attributes = SECURITY_ATTRIBUTES {
        nLength: u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).unwrap_or_default(),
        lpSecurityDescriptor: descriptor.0,
        bInheritHandle: 0,
    };
    // SAFETY: the path ends with a zero; the descriptor is alive until the end.
    check(unsafe { CreateDirectoryW(path.as_ptr(), &raw const attributes) })
}

fn try_protect(path: &Path, guard: Guard) -> io::Result<()> {
    try_set(path, |is_directory| if is_directory { AccessList::of(guard).text() } else { FILE.to_string() })
}

fn try_set(path: &Path, text: impl FnOnce(bool) -> String) -> io::Result<()> {
    let file = open_to_change(path)?;
    let meta = file.metadata()?;
    if meta.is_symlink() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a link"));
    }
    let descriptor = Descriptor::parse(&text(meta.is_dir()))?;
    set(&file, &descriptor, PROTECTED_DACL_SECURITY_INFORMATION)
}

/// Sets owner and access list of the open object only. `SetSecurityInfo` would also apply the list to the content of a directory, which may have a
/// hard link to a file elsewhere.
fn set(file: &File, descriptor: &Descriptor, also: u32) -> io::Result<()> {
    let what = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION | also;
    // SAFETY: the handle is open; the descriptor is valid.
    check(unsafe { SetKernelObjectSecurity(file.as_raw_handle(), what, descriptor.0) })
}

fn try_reset_below(path: &Path, except: Option<&Path>) -> Result<(), HostError> {
    // An entry that cannot be taken over makes the directory unusable, so the error names it.
    let failed = |path: &Path| HostError::system("take over", path.display().to_string());
    let entries = match fs::read_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed(path))?,
    };
    for entry in entries {
        let path = entry.map_err(failed(path))?.path();
        let is_except = except.is_some_and(|except| path.as_os_str().eq_ignore_ascii_case(except));
        let is_gone =
            |e: &HostError| matches!(e, HostError::System { source, .. } if source.kind() == io::ErrorKind::NotFound);
        match (!is_except).then(|| reset(&path)) {
            Some(Ok(true)) => try_reset_below(&path, except)?,
            // A missing entry is not an error: a running service has removed it meanwhile.
            Some(Err(e)) if !is_gone(&e) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Makes Administrators the owner of an entry. Returns whether it is a directory, and not a link to one; links are changed as well, because their
/// owner can turn them into directories. A file with more than one name may be a file elsewhere, and is never changed.
fn reset(path: &Path) -> Result<bool, HostError> {
    let failed = |e| HostError::system("take over", path.display().to_string())(e);
    let file = open_to_change(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    // For Windows, a link to a directory is a directory.
    let is_directory = meta.file_attributes() & FILE_ATTRIBUTE_DIRECTORY != 0;
    if !is_directory && names(&file).map_err(failed)? > 1 {
        let place = place_of(&file).map_err(failed)?;
        return place.is_out_of_reach().then_some(false).ok_or_else(|| HostError::Refused {
            path: path.display().to_string(),
            problem: "it has other names (hard links), and a user can change it; take that right from the user, or remove this name".into(),
        });
    }
    let inherited = if is_directory { INHERITED_DIRECTORY } else { INHERITED_FILE };
    set(&file, &Descriptor::parse(inherited).map_err(failed)?, 0).map_err(failed)?;
    Ok(meta.is_dir())
}

/// Number of names (hard links) of a file.
fn names(file: &File) -> io::Result<u32> {
    let mut information = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open; the struct is the one of the call.
    check(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut information) })?;
    Ok(information.nNumberOfLinks)
}

/// SID of the user that runs wicd.
fn own_sid() -> io::Result<String> {
    // Large enough for any SID, and aligned for `TOKEN_USER`.
    let mut user = [0_u64; 32];
    // SAFETY: the buffer is read only if it was filled with the struct. The SID is in it.
    unsafe {
        Token::open(TOKEN_QUERY)?.read(TokenUser, &mut user)?;
        sid_text((*user.as_ptr().cast::<TOKEN_USER>()).User.Sid)
    }
}

/// SID as text.
///
/// # Safety
/// `sid` is valid.
unsafe fn sid_text(sid: PSID) -> io::Result<String> {
    let mut pointer = null_mut();
    // SAFETY: the caller promises the SID; the text is freed after it was copied.
    unsafe {
        check(ConvertSidToStringSidW(sid, &raw mut pointer))?;
        let text = text(pointer);
        LocalFree(pointer.cast());
        Ok(text)
    }
}

/// Security descriptor that Windows allocated.
pub(super) struct Descriptor(PSECURITY_DESCRIPTOR);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: Windows allocated it, and it is not used afterwards.
        unsafe { LocalFree(self.0) };
    }
}

impl Descriptor {
    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let text = wide(text)?;
        let mut descriptor = null_mut();
        // SAFETY: the text ends with a zero; null: the size is not requested.
        check(unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                null_mut(),
            )
        })?;
        Ok(Self(descriptor))
    }

    pub(super) fn as_raw(&self) -> PSECURITY_DESCRIPTOR {
        self.0
    }
}
