//! Active Directory domain of the host, and usability of domain accounts on the host, through `netapi32.dll`. A host without that library, or
//! without one of its functions, is treated as a host without a domain.

use std::io;
use std::ptr::{null, null_mut};

use api::host::AccountState;

use super::library::Library;
use super::wide::{text, wide};

const LIBRARY: &str = "netapi32.dll";
/// `DsRolePrimaryDomainInfoBasic`
const PRIMARY_DOMAIN_BASIC: i32 = 1;
/// `DsRole_RoleMemberWorkstation`, `DsRole_RoleMemberServer`, `DsRole_RoleBackupDomainController`, `DsRole_RolePrimaryDomainController`
const MEMBER_ROLES: [i32; 4] = [1, 3, 4, 5];

/// `DSROLE_PRIMARY_DOMAIN_INFO_BASIC`
#[repr(C)]
struct PrimaryDomain {
    role: i32,
    flags: u32,
    flat_name: *const u16,
    dns_name: *const u16,
    forest_name: *const u16,
    guid: [u8; 16],
}

type GetPrimaryDomain = unsafe extern "system" fn(*const u16, i32, *mut *mut PrimaryDomain) -> u32;
type FreePrimaryDomain = unsafe extern "system" fn(*mut PrimaryDomain);
/// Type of `NetQueryServiceAccount`: server, account, level, `MSA_INFO_0`.
type QueryServiceAccount = unsafe extern "system" fn(*const u16, *const u16, u32, *mut *mut i32) -> i32;
type FreeBuffer = unsafe extern "system" fn(*mut i32) -> u32;

/// DNS name of the host's domain, if it is a member of one.
pub(super) fn domain() -> Option<String> {
    primary_domain().ok().flatten()
}

fn primary_domain() -> io::Result<Option<String>> {
    let library = Library::load(LIBRARY)?;
    // SAFETY: the types are those of dsrole.h.
    let (get, free): (GetPrimaryDomain, FreePrimaryDomain) =
        unsafe { (library.function(c"DsRoleGetPrimaryDomainInformation")?, library.function(c"DsRoleFreeMemory")?) };
    let mut found: *mut PrimaryDomain = null_mut();
    // SAFETY: null stands for this computer; the result is a struct of the requested level, and is freed once.
    unsafe {
        if get(null(), PRIMARY_DOMAIN_BASIC, &raw mut found) != 0 || found.is_null() {
            return Ok(None);
        }
        let name = text((*found).dns_name);
        let is_member = MEMBER_ROLES.contains(&(*found).role);
        free(found);
        Ok((is_member && !name.is_empty()).then_some(name))
    }
}

/// Reports whether the host can use a group Managed Service Account.
pub(super) fn service_account(name: &str) -> AccountState {
    query(name).unwrap_or_default()
}

fn query(name: &str) -> io::Result<AccountState> {
    let library = Library::load(LIBRARY)?;
    // SAFETY: the types are those of lmaccess.h and lmapibuf.h.
    let (query, free): (QueryServiceAccount, FreeBuffer) =
        unsafe { (library.function(c"NetQueryServiceAccount")?, library.function(c"NetApiBufferFree")?) };
    let name = wide(name)?;
    let mut found: *mut i32 = null_mut();
    // SAFETY: null stands for this computer and the name ends with a zero; the result is an `MSA_INFO_0`, which is one number, and is
    // freed once.
    unsafe {
        if query(null(), name.as_ptr(), 0, &raw mut found) != 0 || found.is_null() {
            return Ok(AccountState::Unknown);
        }
        let state = *found;
        free(found);
        Ok(account_state(state))
    }
}

/// State of an account by `MSA_INFO_STATE`. Only accounts that are not group accounts can be "ready to install", and containers cannot use those.
fn account_state(state: i32) -> AccountState {
    match state {
        1 => AccountState::NotFound,
        2 | 4 => AccountState::NotManaged,
        3 => AccountState::NotAllowed,
        5 => AccountState::Usable,
        _ => AccountState::Unknown,
    }
}
