//! Texts in ConfigMaps and Secrets, in UTF-8 or in UTF-16 with a byte order mark, because Windows programs write both.

use std::collections::BTreeMap;

use api::text::NotText;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

/// Returns all entries of a ConfigMap. kubectl puts values that are not UTF-8 into `binaryData`.
pub(crate) fn entries(map: ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let texts = map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
    let others = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
    texts.chain(others).collect()
}

/// Returns the text of an entry of a ConfigMap, or `None` if there is no such entry.
///
/// # Errors
/// Fails when the entry is not text.
pub(crate) fn of_config_map(map: ConfigMap, key: &str) -> Result<Option<String>, NotText> {
    entries(map).remove(key).map(|bytes| api::text::decode(&bytes).map(Into::into)).transpose()
}

/// Returns the text of an entry of a Secret, or `None` if there is no such entry.
///
/// # Errors
/// Fails when the entry is not text.
pub(crate) fn of_secret(secret: &Secret, key: &str) -> Result<Option<String>, NotText> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    bytes.map(|bytes| api::text::decode(&bytes.0).map(Into::into)).transpose()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::cluster::{images::Images, objects, secrets::known_hosts};

    /// Returns the ConfigMap that kubectl creates from a file.
    fn map(key: &str, bytes: &[u8]) -> ConfigMap {
        let entry = |value| BTreeMap::from([(key.to_owned(), value)]);
        match str::from_utf8(bytes) {
            Ok(text) => ConfigMap { data: Some([(key.to_owned(), text.to_owned())].into()), ..ConfigMap::default() },
            Err(_) => ConfigMap { binary_data: Some(entry(ByteString(bytes.to_vec()))), ..ConfigMap::default() },
        }
    }

    fn secret(key: &str, bytes: &[u8]) -> Secret {
        Secret { data: Some([(key.to_owned(), ByteString(bytes.to_vec()))].into()), ..Secret::default() }
    }

    /// Returns the problem that `add` reports, as an error.
    fn reported_problem(add: impl FnOnce(&mut Images)) -> Result<(), String> {
        let mut images = Images::default();
        add(&mut images);
        images.unusable.pop().map_or(Ok(()), |unusable| Err(unusable.problem))
    }

    type Reader = Box<dyn Fn(&[u8]) -> Result<(), String>>;

    /// Returns a valid example of each text that users write, with the function that reads it.
    fn sources() -> Vec<(&'static str, String, Reader)> {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap().pem();
        let ssh = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
        vec![
            (
                "windows-instances",
                "username=Administrator\n".into(),
                Box::new(|bytes| {
                    let (hosts, bad) = gitops::hosts::windows_instances(&entries(map("10.0.0.1", bytes)));
                    let is_read = hosts == [("10.0.0.1".to_owned(), "Administrator".to_owned())];
                    if is_read { Ok(()) } else { Err(bad[0].message.clone()) }
                }),
            ),
            (
                "a list in a file",
                "hosts:\n- name: win-1\n  address: win-1.example.com.\n".into(),
                Box::new(|bytes| {
                    let file = gitops::File { path: "a.yaml".into(), bytes: bytes.to_vec() };
                    let read = gitops::hosts::read(&[file]);
                    read.map(|entries| assert_eq!(entries.len(), 1)).map_err(|findings| findings[0].to_string())
                }),
            ),
            (
                "a private key",
                key.serialize_pem(),
                Box::new(|bytes| {
                    remote::ssh::Identity::from_pem("x", bytes).map(drop).map_err(|error| error.to_string())
                }),
            ),
            (
                "known_hosts",
                format!("# hosts\nwin-1 {ssh}\n"),
                Box::new(|bytes| known_hosts(bytes, "win-1", 22).map(|known| assert_eq!(known.keys.len(), 1))),
            ),
            (
                "credentials for Git",
                "name".into(),
                Box::new(|bytes| {
                    let data = ["username", "password"].map(|key| (key.to_owned(), bytes.to_vec())).into();
                    let access = gitops::repository::Access::from_secret("https://example.com", &data);
                    access.map(|a| assert_eq!(a.username.as_deref(), Some("name"))).map_err(|error| error.to_string())
                }),
            ),
            (
                "image-mirrors",
                "imageTagMirrors:\n- source: a\n  mirrors: [b]\n".into(),
                Box::new(|bytes| {
                    let text = of_config_map(map("mirrors.yaml", bytes), "mirrors.yaml");
                    reported_problem(|images| images.add_config_map(text, "ns"))
                }),
            ),
            (
                "trusted-ca",
                certificate,
                Box::new(|bytes| {
                    objects::bundle(map("ca-bundle.crt", bytes), "ns").map(drop).map_err(|unusable| unusable.problem)
                }),
            ),
            (
                "pull-secret",
                r#"{"auths": {"r": {"auth": "YTpi"}}}"#.into(),
                Box::new(|bytes| {
                    reported_problem(|images| images.add_pull_secret(&secret(".dockerconfigjson", bytes), "ns"))
                }),
            ),
        ]
    }

    #[test]
    fn each_text_is_read_in_utf_8_and_utf_16_and_otherwise_refused() {
        let utf16 = |text: &str, unit: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(unit).collect::<Vec<u8>>();
        for (source, text, read) in sources() {
            let marked = format!("\u{feff}{text}");
            for (form, bytes) in [
                ("UTF-8", text.clone().into_bytes()),
                ("with carriage returns", text.replace('\n', "\r\n").into_bytes()),
                ("with a byte order mark", marked.clone().into_bytes()),
                ("UTF-16 LE", utf16(&marked, u16::to_le_bytes)),
                ("UTF-16 BE", utf16(&marked, u16::to_be_bytes)),
            ] {
                assert_eq!(read(&bytes), Ok(()), "{source}, {form}");
            }
            for (form, bytes) in [
                ("UTF-16 without a mark", utf16(&text, u16::to_le_bytes)),
                ("Windows-1252", [text.as_bytes(), b"# gr\xfc\xdfe"].concat()),
            ] {
                let fault = read(&bytes).expect_err(&format!("{source}, {form}"));
                assert!(fault.contains("UTF-8"), "{source}, {form}: {fault}");
            }
        }
    }
}
