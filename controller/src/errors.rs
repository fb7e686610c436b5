//! How errors of the API server are told to people.

/// As much of it as a condition has room for.
const MOST: usize = 2000;

/// What the API server said, without the machinery around it. It goes into messages, because what to do depends on it:
/// a right that is missing looks the same as an outage otherwise.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => api::text::line(&status.message, MOST),
        other => api::text::line(&other.to_string(), MOST),
    }
}
