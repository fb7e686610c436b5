//! The Host Networking Service, by `HNSCall` of vmcompute.dll. A host without that library has no such networks.

use std::io;
use std::ptr::null_mut;

use windows_sys::Win32::System::Com::CoTaskMemFree;

use super::library::Library;
use super::wide::{text, wide};
use crate::host::HostError;

/// Networks that our services make; endpoints on them go with them. Legacy.
const NETWORKS: [&str; 2] = ["BaseOVNKubernetesHybridOverlayNetwork", "OVNKubernetesHybridOverlayNetwork"];

/// Method, path, request, response.
type HnsCall = unsafe extern "system" fn(*const u16, *const u16, *const u16, *mut *mut u16) -> i32;

/// Removes the networks that our services make.
pub fn remove_networks() -> Result<(), HostError> {
    let Ok(library) = Library::load("vmcompute.dll") else { return Ok(()) };
    // SAFETY: the type is the one that the library's users declare.
    let call: HnsCall = unsafe { library.function(c"HNSCall") }.map_err(HostError::system("find", "HNSCall"))?;
    let list = request(call, "GET", "/networks").map_err(HostError::system("list", "HNS networks"))?;
    for (id, name) in ours(&list) {
        request(call, "DELETE", &format!("/networks/{id}")).map_err(HostError::system("remove HNS network", name))?;
    }
    Ok(())
}

fn request(call: HnsCall, method: &str, path: &str) -> io::Result<serde_json::Value> {
    let (method, path, body) = (wide(method)?, wide(path)?, wide("")?);
    let mut response: *mut u16 = null_mut();
    // SAFETY: all texts end with a zero; the response is null or a text that we give back.
    let (result, answer) = unsafe {
        let result = call(method.as_ptr(), path.as_ptr(), body.as_ptr(), &raw mut response);
        let answer = text(response);
        CoTaskMemFree(response.cast());
        (result, answer)
    };
    if result < 0 {
        return Err(io::Error::other(format!("HRESULT 0x{result:08x}")));
    }
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    if answer["Success"].as_bool() == Some(true) {
        return Ok(answer);
    }
    Err(io::Error::other(answer["Error"].as_str().unwrap_or("HNS refused").to_owned()))
}

/// Ids and names of our networks in the answer to a listing.
fn ours(list: &serde_json::Value) -> Vec<(String, String)> {
    let networks = list["Output"].as_array().map(Vec::as_slice).unwrap_or_default();
    networks
        .iter()
        .filter_map(|n| Some((n["ID"].as_str()?, n["Name"].as_str()?)))
        .filter(|(id, name)| NETWORKS.contains(name) && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
        .map(|(id, name)| (id.to_owned(), name.to_owned()))
        .collect()
}
