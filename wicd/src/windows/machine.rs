//! Facts about the host itself: names, versions, addresses, free space, rights.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ptr::{null, null_mut};

use api::host::{Feature, Machine};
use windows_registry::LOCAL_MACHINE;
use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA};
use windows_sys::Win32::Globalization::{GetSystemDefaultUILanguage, LCIDToLocaleName};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GAA_FLAG_SKIP_ANYCAST, GAA_FLAG_SKIP_DNS_SERVER, GAA_FLAG_SKIP_MULTICAST, GetAdaptersAddresses,
    IP_ADAPTER_ADDRESSES_LH,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, SOCKADDR_IN, SOCKADDR_IN6, SOCKET_ADDRESS,
};
use windows_sys::Win32::Security::{TOKEN_ELEVATION, TOKEN_QUERY, TokenElevation};
use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;
use windows_sys::Win32::System::SystemInformation::{
    ComputerNamePhysicalDnsHostname, GetComputerNameExW, GetTickCount64,
};

use super::domain;
use super::library::Library;
use super::privilege::Token;
use super::wide::{check, check_code, error, is, plain, text_in, wide};
use crate::host::{Adapter, HostError};

const CRYPTOGRAPHY: &str = r"SOFTWARE\Microsoft\Cryptography";
const CURRENT_VERSION: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
/// `LOCALE_NAME_MAX_LENGTH`
const LOCALE_NAME_LENGTH: usize = 85;
/// Registry key of HNS' service.
const HNS: &str = r"SYSTEM\CurrentControlSet\Services\hns";
const PREFETCH: &str = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters";

/// Returns all facts of the host.
pub(super) fn machine() -> Result<Machine, HostError> {
    Ok(Machine {
        hostname: hostname().map_err(HostError::system("read", "the host name"))?,
        machine_id: machine_id()?,
        boot_id: boot_id()?,
        os_build: os_build()?,
        os_name: text(CURRENT_VERSION, "ProductName")?,
        clock_ms: jiff::Timestamp::now().as_millisecond(),
        uptime_ms: uptime_ms(),
        addresses: addresses()
            .map_err(HostError::system("list", "the network addresses"))?
            .iter()
            .map(ToString::to_string)
            .collect(),
        default_address: default_address().map(|a| a.to_string()),
        disk_free: disk_free()?,
        is_admin: is_admin()?,
        containers_feature: if has_containers() { Feature::Enabled } else { Feature::Disabled },
        domain: domain::domain(),
        language: language(),
    })
}

/// Reports whether the host has the components of the feature Containers: the library of the host compute service, and HNS. A
/// query to DISM would take seconds, and fail while Windows installs an update.
pub(super) fn has_containers() -> bool {
    Library::load("vmcompute.dll").is_ok() && LOCAL_MACHINE.open(HNS).is_ok()
}

pub(super) fn machine_id() -> Result<String, HostError> {
    text(CRYPTOGRAPHY, "MachineGuid")
}

pub(super) fn boot_id() -> Result<String, HostError> {
    Ok(number(PREFETCH, "BootId")?.to_string())
}

pub(super) fn disk_free() -> Result<u64, HostError> {
    free_bytes().map_err(HostError::system("read", "the free space of C:"))
}

pub(super) fn is_admin() -> Result<bool, HostError> {
    is_elevated().map_err(HostError::system("read", "the rights of wicd's process"))
}

fn text(key: &str, value: &str) -> Result<String, HostError> {
    LOCAL_MACHINE
        .open(key)
        .and_then(|k| k.get_string(value))
        .map_err(plain)
        .map_err(HostError::system("read the registry value", format!(r"HKLM\{key}\{value}")))
}

fn number(key: &str, value: &str) -> Result<u32, HostError> {
    LOCAL_MACHINE
        .open(key)
        .and_then(|k| k.get_u32(value))
        .map_err(plain)
        .map_err(HostError::system("read the registry value", format!(r"HKLM\{key}\{value}")))
}

/// Build of Windows, such as `10.0.20348.2527`, from the registry: the version calls report an older one to programs without a
/// manifest.
fn os_build() -> Result<String, HostError> {
    let build = text(CURRENT_VERSION, "CurrentBuildNumber")?;
    let major = number(CURRENT_VERSION, "CurrentMajorVersionNumber")?;
    let minor = number(CURRENT_VERSION, "CurrentMinorVersionNumber")?;
    let revision = number(CURRENT_VERSION, "UBR").unwrap_or(0);
    Ok(format!("{major}.{minor}.{build}.{revision}"))
}

fn hostname() -> io::Result<String> {
    let mut buffer = [0_u16; 256];
    let mut length = 256;
    // SAFETY: the buffer has the passed length.
    check(unsafe { GetComputerNameExW(ComputerNamePhysicalDnsHostname, buffer.as_mut_ptr(), &raw mut length) })?;
    Ok(text_in(&buffer))
}

/// Milliseconds since the host was started, including time asleep.
fn uptime_ms() -> i64 {
    // SAFETY: the call has no parameters and cannot fail.
    i64::try_from(unsafe { GetTickCount64() }).unwrap_or(i64::MAX)
}

/// Language of the Windows installation, which determines the names of accounts and groups.
fn language() -> Option<String> {
    let mut name = [0_u16; LOCALE_NAME_LENGTH];
    let length = i32::try_from(name.len()).ok()?;
    // SAFETY: the buffer has the passed length; no flags.
    let written = unsafe { LCIDToLocaleName(GetSystemDefaultUILanguage().into(), name.as_mut_ptr(), length, 0) };
    Some(text_in(&name)).filter(|name| written > 0 && !name.is_empty())
}

fn free_bytes() -> io::Result<u64> {
    let root = wide(r"C:\")?;
    let mut free = 0;
    // SAFETY: the path ends with a zero; null stands for values that are not requested.
    check(unsafe { GetDiskFreeSpaceExW(root.as_ptr(), &raw mut free, null_mut(), null_mut()) })?;
    Ok(free)
}

fn is_elevated() -> io::Result<bool> {
    let mut elevation = TOKEN_ELEVATION::default();
    // SAFETY: the struct is the one of the class.
    unsafe { Token::open(TOKEN_QUERY)?.read(TokenElevation, &mut elevation)? };
    Ok(elevation.TokenIsElevated != 0)
}

/// Source address of the default route, if the host has one. Connecting a UDP socket only selects a route, and sends nothing.
/// The destinations are reserved for documentation, so no other route leads there.
fn default_address() -> Option<IpAddr> {
    let from = |local: IpAddr, world: IpAddr| {
        let socket = UdpSocket::bind((local, 0)).ok()?;
        socket.connect((world, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|a| is_usable(*a))
    };
    from(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(203, 0, 113, 1).into())
        .or_else(|| from(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()))
}

/// Reports whether an address is neither loopback nor link-local nor unspecified.
fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !a.is_loopback() && !a.is_link_local() && !a.is_unspecified(),
        IpAddr::V6(a) => !a.is_loopback() && !a.is_unicast_link_local() && !a.is_unspecified(),
    }
}

fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> = listing()?.into_iter().flat_map(|(_, addresses)| addresses).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Network adapters in the compartment of this process, which is the host's.
pub(super) fn adapters() -> io::Result<Vec<Adapter>> {
    let v4 = |a: IpAddr| if let IpAddr::V4(a) = a { Some(a) } else { None };
    let adapter = |(mac, found): Listed| Adapter { mac, ipv4: found.into_iter().filter_map(v4).collect() };
    Ok(listing()?.into_iter().map(adapter).collect())
}

/// MAC address and usable addresses of an adapter.
type Listed = (Vec<u8>, Vec<IpAddr>);

fn listing() -> io::Result<Vec<Listed>> {
    const FLAGS: u32 = GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST | GAA_FLAG_SKIP_DNS_SERVER;
    let mut buffer: Vec<u64> = vec![0; 4096];
    // Adapters may be added between two calls, so a second call may not be enough.
    for _ in 0..8 {
        let mut size = u32::try_from(size_of_val(buffer.as_slice())).unwrap_or(u32::MAX);
        let first = buffer.as_mut_ptr().cast::<IP_ADAPTER_ADDRESSES_LH>();
        // SAFETY: the buffer has the passed length and is aligned for the structs in it.
        let code = unsafe { GetAdaptersAddresses(u32::from(AF_UNSPEC), FLAGS, null(), first, &raw mut size) };
        match check_code(code) {
            // SAFETY: the call has put a list of structs into the buffer, which is alive until the addresses are copied.
            Ok(()) => return Ok(unsafe { listed(first) }),
            Err(e) if is(&e, ERROR_NO_DATA) => return Ok(Vec::new()),
            Err(e) if is(&e, ERROR_BUFFER_OVERFLOW) => buffer.resize((size as usize).div_ceil(8) + 1024, 0),
            Err(e) => return Err(e),
        }
    }
    Err(error(ERROR_BUFFER_OVERFLOW))
}

/// Adapters of a list from Windows.
///
/// # Safety
/// `adapter` is null or the head of a list from `GetAdaptersAddresses`.
unsafe fn listed(mut adapter: *const IP_ADAPTER_ADDRESSES_LH) -> Vec<Listed> {
    let mut all = Vec::new();
    // SAFETY: the caller promises well-formed lists, which end with null.
    unsafe {
        while !adapter.is_null() {
            let mut found = Vec::new();
            let mut unicast = (*adapter).FirstUnicastAddress;
            while !unicast.is_null() {
                found.extend(address(&(*unicast).Address).filter(|a| is_usable(*a)));
                unicast = (*unicast).Next;
            }
            let physical = (*adapter).PhysicalAddress;
            let length = (*adapter).PhysicalAddressLength as usize;
            all.push((physical[..length.min(physical.len())].to_vec(), found));
            adapter = (*adapter).Next;
        }
    }
    all
}

/// IP address of a socket address; `None` for other families.
///
/// # Safety
/// The pointer in `socket` is null or points to an address of the family that it names.
unsafe fn address(socket: &SOCKET_ADDRESS) -> Option<IpAddr> {
    if socket.lpSockaddr.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that the family determines the struct; it is read without an assumption on its
    // alignment.
    unsafe {
        match (&raw const (*socket.lpSockaddr).sa_family).read_unaligned() {
            AF_INET => {
                let v4 = socket.lpSockaddr.cast::<SOCKADDR_IN>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.S_un.S_addr)).into())
            }
            AF_INET6 => {
                let v6 = socket.lpSockaddr.cast::<SOCKADDR_IN6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.u.Byte).into())
            }
            _ => None,
        }
    }
}
