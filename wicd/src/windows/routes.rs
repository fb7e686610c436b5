//! Table of IPv4 routes.

use std::io;
use std::net::Ipv4Addr;
use std::ptr::null_mut;
use std::slice;

use windows_sys::Win32::Foundation::{ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CreateIpForwardEntry2, DeleteIpForwardEntry2, FreeMibTable, GetIpForwardTable2, GetIpInterfaceEntry,
    InitializeIpForwardEntry, InitializeIpInterfaceEntry, MIB_IPFORWARD_ROW2, MIB_IPFORWARD_TABLE2,
    MIB_IPINTERFACE_ROW,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, MIB_IPPROTO_NETMGMT, SOCKADDR_INET};

use super::wide::{check_code, is};
use crate::host::Route;

/// Returns all IPv4 routes of the host.
pub(super) fn list() -> io::Result<Vec<Route>> {
    let mut table: *mut MIB_IPFORWARD_TABLE2 = null_mut();
    // SAFETY: on success, the call allocates a table, which is freed after its rows were copied.
    unsafe {
        check_code(GetIpForwardTable2(AF_INET, &raw mut table))?;
        let count = (*table).NumEntries as usize;
        let rows = slice::from_raw_parts((&raw const (*table).Table).cast::<MIB_IPFORWARD_ROW2>(), count);
        let routes = rows.iter().map(|row| read(row)).collect::<Vec<_>>();
        FreeMibTable(table.cast());
        Ok(routes)
    }
}

/// Metric of a network adapter, which Windows adds to the metrics of its routes; 0 if Windows does not report it.
fn of_interface(index: u32) -> u32 {
    let mut row = MIB_IPINTERFACE_ROW::default();
    // SAFETY: the row is ours; the first call fills it with defaults.
    unsafe {
        InitializeIpInterfaceEntry(&raw mut row);
        row.Family = AF_INET;
        row.InterfaceIndex = index;
        if check_code(GetIpInterfaceEntry(&raw mut row)).is_ok() { row.Metric } else { 0 }
    }
}

/// Creates a route that lasts until the next restart of the host. An existing one is success.
pub(super) fn add(route: &Route) -> io::Result<()> {
    let row = MIB_IPFORWARD_ROW2 { Metric: route.metric, Protocol: MIB_IPPROTO_NETMGMT, ..row(route) };
    // SAFETY: all fields of the row are set.
    match check_code(unsafe { CreateIpForwardEntry2(&raw const row) }) {
        Err(e) if is(&e, ERROR_OBJECT_ALREADY_EXISTS) => Ok(()),
        result => result,
    }
}

/// Removes a route. A missing one is success.
pub(super) fn remove(route: &Route) -> io::Result<()> {
    let row = row(route);
    // SAFETY: all fields of the row are set.
    match check_code(unsafe { DeleteIpForwardEntry2(&raw const row) }) {
        // Windows returns the second error if the network adapter of the route no longer exists.
        Err(e) if is(&e, ERROR_NOT_FOUND) || is(&e, ERROR_FILE_NOT_FOUND) => Ok(()),
        result => result,
    }
}

/// Row of the route table with the fields that identify a route for Windows.
fn row(route: &Route) -> MIB_IPFORWARD_ROW2 {
    let mut row = MIB_IPFORWARD_ROW2::default();
    // SAFETY: the row is ours; the call fills it with defaults.
    unsafe { InitializeIpForwardEntry(&raw mut row) };
    row.InterfaceIndex = route.interface;
    row.DestinationPrefix.Prefix = address(route.destination);
    row.DestinationPrefix.PrefixLength = route.length;
    row.NextHop = address(route.next_hop);
    row
}

/// Converts a row of the route table.
///
/// # Safety
/// The row is one of IPv4.
unsafe fn read(row: &MIB_IPFORWARD_ROW2) -> Route {
    // SAFETY: the caller promises an IPv4 row.
    let ip = |address: &SOCKADDR_INET| unsafe { Ipv4Addr::from(u32::from_be(address.Ipv4.sin_addr.S_un.S_addr)) };
    Route {
        destination: ip(&row.DestinationPrefix.Prefix),
        length: row.DestinationPrefix.PrefixLength,
        next_hop: ip(&row.NextHop),
        interface: row.InterfaceIndex,
        metric: row.Metric.saturating_add(of_interface(row.InterfaceIndex)),
    }
}

fn address(ip: Ipv4Addr) -> SOCKADDR_INET {
    let mut address = SOCKADDR_INET::default();
    address.Ipv4.sin_family = AF_INET;
    address.Ipv4.sin_addr.S_un.S_addr = u32::from(ip).to_be();
    address
}
