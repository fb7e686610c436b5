//! How errors of the API server are told to people.

/// What the API server said, without the machinery around it. It goes into messages, because what to do depends on it:
/// a right that is missing looks the same as an outage otherwise.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
