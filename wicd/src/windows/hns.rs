//! Host Networking Service (HNS), through `HNSCall` of `vmcompute.dll`. A host without that library has no HNS networks.

use std::io;
use std::ptr::null_mut;

use serde_json::Value;
use windows_sys::Win32::System::Com::CoTaskMemFree;

use super::library::Library;
use super::wide::{text, wide};
use crate::host::{HnsRequest, HostError};
use crate::network::HNS_NETWORKS;

const LIBRARY: &str = "vmcompute.dll";

/// Type of `HNSCall`: method, path, request, response.
type HnsCall = unsafe extern "system" fn(*const u16, *const u16, *const u16, *mut *mut u16) -> i32;

/// Removes the networks that the operator's services create.
pub(super) fn remove_networks() -> Result<(), HostError> {
    let Ok(library) = Library::load(LIBRARY) else { return Ok(()) };
    let call = function(&library)?;
    let list = request(call, "GET", "/networks", "").map_err(HostError::system("list", "HNS networks"))?;
    for (id, name) in ours(&list) {
        request(call, "DELETE", &format!("/networks/{id}"), "")
            .map_err(HostError::system("remove HNS network", name))?;
    }
    Ok(())
}

/// Sends a request to HNS; see [`crate::host::Host::hns`].
pub(super) fn ask(asked: &HnsRequest) -> Result<Value, HostError> {
    let library = Library::load(LIBRARY).map_err(HostError::system("load", LIBRARY))?;
    let what = format!("{} {}", asked.method, asked.path);
    let answer = request(function(&library)?, asked.method, &asked.path, &asked.body);
    answer.map_err(HostError::system("complete the HNS request", what))
}

fn function(library: &Library) -> Result<HnsCall, HostError> {
    // SAFETY: the type is the one that the library's users declare.
    unsafe { library.function(c"HNSCall") }.map_err(HostError::system("find", "HNSCall"))
}

/// Sends a request, and returns the `Output` of the answer, null if there is none.
fn request(call: HnsCall, method: &str, path: &str, body: &str) -> io::Result<Value> {
    let (method, path, body) = (wide(method)?, wide(path)?, wide(body)?);
    let mut response: *mut u16 = null_mut();
    // SAFETY: all texts end with a zero; the response is null or a text that is freed.
    let (result, answer) = unsafe {
        let result = call(method.as_ptr(), path.as_ptr(), body.as_ptr(), &raw mut response);
        let answer = text(response);
        CoTaskMemFree(response.cast());
        (result, answer)
    };
    if result < 0 {
        return Err(io::Error::other(format!("HRESULT 0x{result:08x}")));
    }
    let mut answer: Value = serde_json::from_str(&answer)?;
    if answer["Success"].as_bool() == Some(true) {
        return Ok(answer["Output"].take());
    }
    Err(io::Error::other(answer["Error"].as_str().unwrap_or("HNS refused the request without a reason").to_owned()))
}

/// IDs and names of the operator's networks in a list.
fn ours(list: &Value) -> Vec<(String, String)> {
    let networks = list.as_array().map(Vec::as_slice).unwrap_or_default();
    networks
        .iter()
        .filter_map(|n| Some((n["ID"].as_str()?, n["Name"].as_str()?)))
        .filter(|(id, name)| HNS_NETWORKS.contains(name) && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
        .map(|(id, name)| (id.to_owned(), name.to_owned()))
        .collect()
}
