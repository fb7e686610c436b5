//! Windows features, through the API of Deployment Image Servicing and Management (`dismapi.dll`). The calls fail on a host without
//! that library, such as Wine.

use std::ffi::c_void;
use std::io;
use std::ptr::{null, null_mut};

use super::library::Library;
use super::wide::wide;
use crate::host::HostError;

const CONTAINERS: &str = "Containers";
/// The feature in error messages, with the remedy.
const BY_HAND: &str =
    "the Windows feature Containers (to do so by hand: Install-WindowsFeature Containers, and then restart the host)";
/// Name of the running system instead of an image path (`DISM_ONLINE_IMAGE`).
const ONLINE: &str = "DISM_{53BFAE52-B167-4E2F-A258-0A37B57FF845}";
/// `DismStateInstalled`
const INSTALLED: i32 = 4;
/// `DismStateInstallPending`
const INSTALL_PENDING: i32 = 5;
/// `ERROR_SUCCESS_REBOOT_REQUIRED`, plain and as HRESULT.
const REBOOT_REQUIRED: [i32; 2] = [3010, 0x8007_0BC2_u32.cast_signed()];

/// `DismFeatureInfo`. The structs of this library have no padding.
#[repr(C, packed)]
struct FeatureInfo {
    name: *const u16,
    state: i32,
    display_name: *const u16,
    description: *const u16,
    restart_required: i32,
    properties: *const c_void,
    property_count: u32,
}

type Initialize = unsafe extern "system" fn(i32, *const u16, *const u16) -> i32;
type Shutdown = unsafe extern "system" fn() -> i32;
type OpenSession = unsafe extern "system" fn(*const u16, *const u16, *const u16, *mut u32) -> i32;
type CloseSession = unsafe extern "system" fn(u32) -> i32;
type GetFeatureInfo = unsafe extern "system" fn(u32, *const u16, *const u16, i32, *mut *mut FeatureInfo) -> i32;
type EnableFeature = unsafe extern "system" fn(
    u32,
    *const u16,
    *const u16,
    i32,
    i32,
    *const *const u16,
    u32,
    i32,
    *mut c_void,
    *const c_void,
    *mut c_void,
) -> i32;
type Delete = unsafe extern "system" fn(*mut c_void) -> i32;

/// Initialized DISM library.
struct Dism(Library);

/// Open session on the running system. It is closed before the library is shut down.
struct Session {
    session: u32,
    dism: Dism,
}

fn checked(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::other(format!("HRESULT 0x{result:08x}"))) } else { Ok(()) }
}

impl Dism {
    /// Loads and initializes the library. `None` if the host does not have it.
    fn load() -> io::Result<Option<Self>> {
        let Ok(library) = Library::load("dismapi.dll") else { return Ok(None) };
        // SAFETY: the types are those of the library's documentation. Null stands for: default log, default scratch directory.
        unsafe {
            let initialize: Initialize = library.function(c"DismInitialize")?;
            checked(initialize(0, null(), null()))?;
        }
        Ok(Some(Self(library)))
    }
}

impl Drop for Dism {
    fn drop(&mut self) {
        // SAFETY: the type is that of the library's documentation; no session is open.
        unsafe {
            if let Ok(shutdown) = self.0.function::<Shutdown>(c"DismShutdown") {
                shutdown();
            }
        }
    }
}

impl Session {
    /// Opens a session on the running system. `None` if this host has no DISM library.
    fn open() -> io::Result<Option<Self>> {
        let Some(dism) = Dism::load()? else { return Ok(None) };
        let image = wide(ONLINE)?;
        let mut session = 0;
        // SAFETY: the types are those of the library's documentation. Null stands for: Windows and system drive of the image.
        unsafe {
            let open: OpenSession = dism.0.function(c"DismOpenSession")?;
            checked(open(image.as_ptr(), null(), null(), &raw mut session))?;
        }
        Ok(Some(Self { session, dism }))
    }

    fn state(&self, feature: &str) -> io::Result<i32> {
        let feature = wide(feature)?;
        let mut info: *mut FeatureInfo = null_mut();
        // SAFETY: the types are those of the library's documentation; the session is open; the returned struct is read
        // without an assumption on its alignment, and freed.
        unsafe {
            let get: GetFeatureInfo = self.dism.0.function(c"DismGetFeatureInfo")?;
            let delete: Delete = self.dism.0.function(c"DismDelete")?;
            checked(get(self.session, feature.as_ptr(), null(), 0, &raw mut info))?;
            let state = (&raw const (*info).state).read_unaligned();
            delete(info.cast());
            Ok(state)
        }
    }

    /// Enables a feature. Returns whether the host must be restarted.
    fn enable(&self, feature: &str) -> io::Result<bool> {
        let feature = wide(feature)?;
        // SAFETY: as in `state`. Null stands for: no package, no other sources, not to be cancelled, no progress.
        let result = unsafe {
            let enable: EnableFeature = self.dism.0.function(c"DismEnableFeature")?;
            enable(self.session, feature.as_ptr(), null(), 0, 0, null(), 0, 1, null_mut(), null(), null_mut())
        };
        if REBOOT_REQUIRED.contains(&result) {
            return Ok(true);
        }
        checked(result)?;
        Ok(false)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the types are those of the library's documentation; the session is not used afterwards.
        unsafe {
            if let Ok(close) = self.dism.0.function::<CloseSession>(c"DismCloseSession") {
                close(self.session);
            }
        }
    }
}

/// Enables the feature Containers. Returns whether the host must be restarted for it.
pub(super) fn enable_containers() -> Result<bool, HostError> {
    let failed = || HostError::system("enable", BY_HAND);
    let Some(session) = Session::open().map_err(failed())? else {
        let missing = io::Error::new(io::ErrorKind::Unsupported, "the host has no dismapi.dll");
        return Err(failed()(missing));
    };
    match session.state(CONTAINERS).map_err(failed())? {
        INSTALLED => Ok(false),
        INSTALL_PENDING => Ok(true),
        _ => {
            let restart = session.enable(CONTAINERS).map_err(failed())?;
            // The call does not always report a necessary restart.
            Ok(restart || session.state(CONTAINERS).map_err(failed())? == INSTALL_PENDING)
        }
    }
}
