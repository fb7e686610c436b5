//! TLS profile of an OpenShift cluster, in kubelet's form.
//!
//! Form of the profile, and contents of the named profiles:
//! <https://github.com/openshift/api/blob/master/config/v1/types_tlssecurityprofile.go>

use api::text;
use serde_json::Value;

/// Minimum TLS version and ciphers of a server on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsProfile {
    /// Minimum TLS version, for example `VersionTLS12`.
    pub min_version: &'static str,
    /// IANA names of the ciphers, in order of preference.
    pub ciphers: Vec<&'static str>,
}

/// Fault of a profile that kubelet must not use: it would not start, or would serve with less than the cluster requires.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum TlsProfileError {
    /// The type of the profile is unknown.
    #[error("the type {0:?} is unknown: use Old, Intermediate, Modern or Custom")]
    UnknownType(String),
    /// A field of a custom profile is missing or invalid.
    #[error("custom.{0} is missing or unknown: set it to VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13")]
    Field(&'static str),
    /// A custom profile has neither of the ciphers that Go accepts for HTTP/2.
    #[error(
        "the custom profile has neither ECDHE-RSA-AES128-GCM-SHA256 nor ECDHE-ECDSA-AES128-GCM-SHA256, one of which kubelet \
         needs for HTTP/2: add one, or set minTLSVersion to VersionTLS13"
    )]
    NoHttp2,
}

const VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
const TLS_1_3: &str = "VersionTLS13";
/// Ciphers for HTTP/2. Go needs at least one of them, unless the minimum version is TLS 1.3.
const HTTP2: [&str; 2] = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"];

/// Ciphers: name in a profile, name for kubelet, and newest named profile that has it. These are all ciphers that Go's `crypto/tls` considers secure.
/// The other ciphers of a named profile are for old clients that kubelet does not have.
const CIPHERS: [(&str, &str, NewestProfile); 13] = [
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", NewestProfile::Modern),
    ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", NewestProfile::Modern),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", NewestProfile::Modern),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", HTTP2[1], NewestProfile::Intermediate),
    ("ECDHE-RSA-AES128-GCM-SHA256", HTTP2[0], NewestProfile::Intermediate),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", NewestProfile::Intermediate),
    ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", NewestProfile::Intermediate),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", NewestProfile::Intermediate),
    ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", NewestProfile::Intermediate),
    ("ECDHE-ECDSA-AES128-SHA", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", NewestProfile::Old),
    ("ECDHE-RSA-AES128-SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", NewestProfile::Old),
    ("ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", NewestProfile::Old),
    ("ECDHE-RSA-AES256-SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", NewestProfile::Old),
];

/// Newest named profile that has a cipher. Older profiles have it, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NewestProfile {
    Old,
    Intermediate,
    Modern,
}

impl TlsProfile {
    fn named(min_version: &'static str, oldest: NewestProfile) -> Self {
        let ciphers = CIPHERS.iter().filter(|(.., era)| *era >= oldest).map(|(_, name, _)| *name);
        Self { min_version, ciphers: ciphers.collect() }
    }

    /// Reads `spec.tlsSecurityProfile` of an `APIServer`. Also returns messages about unused parts. A profile that kubelet could not serve with is
    /// replaced by Intermediate, as on Linux nodes: it must not keep other facts of the cluster from nodes.
    pub fn of_cluster(profile: Option<&Value>) -> (Self, Vec<String>) {
        Self::parse(profile).unwrap_or_else(|error| {
            let sentence = format!(
                "spec.tlsSecurityProfile of APIServer/cluster cannot be used, so kubelet uses the profile Intermediate: {error}"
            );
            (Self::named("VersionTLS12", NewestProfile::Intermediate), vec![sentence])
        })
    }

    /// Parses `spec.tlsSecurityProfile` of an `APIServer`. An unset profile is Intermediate, as in OpenShift. Also returns messages about ciphers
    /// that are left out of a custom profile.
    ///
    /// # Errors
    /// Fails if kubelet could not serve with the profile.
    fn parse(profile: Option<&Value>) -> Result<(Self, Vec<String>), TlsProfileError> {
        let profile = profile.filter(|p| !p.is_null());
        let named = |min_version, oldest| Ok((Self::named(min_version, oldest), Vec::new()));
        match profile.map(|p| p["type"].as_str().unwrap_or_default()) {
            None | Some("" | "Intermediate") => named("VersionTLS12", NewestProfile::Intermediate),
            Some("Old") => named("VersionTLS10", NewestProfile::Old),
            Some("Modern") => named(TLS_1_3, NewestProfile::Modern),
            Some("Custom") => Self::custom(profile.map_or(&Value::Null, |p| &p["custom"])),
            Some(other) => Err(TlsProfileError::UnknownType(text::line(other, 64))),
        }
    }

    fn custom(custom: &Value) -> Result<(Self, Vec<String>), TlsProfileError> {
        let version = custom["minTLSVersion"].as_str();
        let min_version = VERSIONS.into_iter().find(|known| Some(*known) == version);
        let min_version = min_version.ok_or(TlsProfileError::Field("minTLSVersion"))?;
        // Without a list, Go's defaults apply.
        let names = custom["ciphers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (mut ciphers, mut unknown) = (Vec::new(), Vec::new());
        for name in names.iter().take(64).map(|name| name.as_str().unwrap_or_default()) {
            match CIPHERS.iter().find(|(openssl, iana, _)| name == *openssl || name == *iana) {
                Some((_, cipher, _)) if !ciphers.contains(cipher) => ciphers.push(*cipher),
                Some(_) => {}
                None => unknown.push(text::line(name, 64)),
            }
        }
        if min_version != TLS_1_3 && !names.is_empty() && !HTTP2.iter().any(|required| ciphers.contains(required)) {
            return Err(TlsProfileError::NoHttp2);
        }
        let sentence = |names: String| {
            format!(
                "kubelet does not support these ciphers of spec.tlsSecurityProfile of APIServer/cluster, and does not use them: {names}; remove them"
            )
        };
        let left_out = (!unknown.is_empty()).then(|| sentence(unknown.join(", ")));
        Ok((Self { min_version, ciphers }, left_out.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn profiles_are_converted_or_refused() {
        let custom = |version: &str, ciphers: Value| json!({"type": "Custom", "custom": {"minTLSVersion": version, "ciphers": ciphers}});
        let http2 = "ECDHE-RSA-AES128-GCM-SHA256";
        for (about, profile, expected) in [
            ("not set", None, Ok(("VersionTLS12", 9, 0))),
            ("null", Some(Value::Null), Ok(("VersionTLS12", 9, 0))),
            ("no type", Some(json!({})), Ok(("VersionTLS12", 9, 0))),
            ("Intermediate", Some(json!({"type": "Intermediate"})), Ok(("VersionTLS12", 9, 0))),
            ("Old", Some(json!({"type": "Old"})), Ok(("VersionTLS10", 13, 0))),
            ("Modern", Some(json!({"type": "Modern"})), Ok(("VersionTLS13", 3, 0))),
            ("an unknown type", Some(json!({"type": "Future"})), Err(TlsProfileError::UnknownType("Future".into()))),
            ("custom", Some(custom("VersionTLS11", json!([http2]))), Ok(("VersionTLS11", 1, 0))),
            ("IANA's names", Some(custom("VersionTLS12", json!([HTTP2[1]]))), Ok(("VersionTLS12", 1, 0))),
            ("one cipher twice", Some(custom("VersionTLS12", json!([http2, HTTP2[0]]))), Ok(("VersionTLS12", 1, 0))),
            (
                "two ciphers that kubelet does not use",
                Some(custom("VersionTLS12", json!([http2, "DHE-RSA-AES128-GCM-SHA256", 7]))),
                Ok(("VersionTLS12", 1, 1)),
            ),
            ("TLS 1.3 alone", Some(custom("VersionTLS13", json!([]))), Ok(("VersionTLS13", 0, 0))),
            ("without HTTP/2", Some(custom("VersionTLS12", json!([CIPHERS[5].0]))), Err(TlsProfileError::NoHttp2)),
            ("Go's ciphers", Some(custom("VersionTLS12", json!([]))), Ok(("VersionTLS12", 0, 0))),
            ("no list", Some(custom("VersionTLS12", Value::Null)), Ok(("VersionTLS12", 0, 0))),
            ("TLS 1.3 without a list", Some(custom("VersionTLS13", Value::Null)), Ok(("VersionTLS13", 0, 0))),
            ("no known cipher", Some(custom("VersionTLS12", json!(["RC4"]))), Err(TlsProfileError::NoHttp2)),
            ("no version", Some(custom("TLS12", json!([http2]))), Err(TlsProfileError::Field("minTLSVersion"))),
            ("custom without a body", Some(json!({"type": "Custom"})), Err(TlsProfileError::Field("minTLSVersion"))),
        ] {
            let found = TlsProfile::parse(profile.as_ref());
            let found = found.map(|(profile, left_out)| (profile.min_version, profile.ciphers.len(), left_out.len()));
            assert_eq!(found, expected, "{about}");
        }
    }

    #[test]
    fn an_unusable_profile_is_replaced_by_intermediate() {
        let profile = json!({"type": "Custom", "custom": {"minTLSVersion": "VersionTLS12", "ciphers": [CIPHERS[5].0]}});
        let (found, sentences) = TlsProfile::of_cluster(Some(&profile));
        assert_eq!(found, TlsProfile::of_cluster(None).0);
        assert!(sentences.len() == 1 && sentences[0].contains("ECDHE-RSA-AES128-GCM-SHA256"), "{sentences:?}");
    }

    #[test]
    fn ciphers_that_are_left_out_are_named_without_control_characters() {
        let ciphers = json!(["ECDHE-RSA-AES128-GCM-SHA256", "RC4-\u{1b}[2JMD5"]);
        let profile = json!({"type": "Custom", "custom": {"minTLSVersion": "VersionTLS12", "ciphers": ciphers}});
        let (_, left_out) = TlsProfile::parse(Some(&profile)).unwrap();
        assert!(left_out[0].contains("RC4-") && !left_out[0].contains('\u{1b}'), "{left_out:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_profile_or_refused(kind in "Custom|Old|.{0,8}", version in "VersionTLS1[0-4]|.{0,8}", ciphers: Vec<String>) {
            let profile = json!({"type": kind, "custom": {"minTLSVersion": version, "ciphers": ciphers}});
            if let Ok((profile, _)) = TlsProfile::parse(Some(&profile)) {
                prop_assert!(VERSIONS.contains(&profile.min_version));
                let has_http2 = profile.ciphers.is_empty() || profile.ciphers.iter().any(|c| HTTP2.contains(c));
                prop_assert!(profile.min_version == TLS_1_3 || has_http2);
            }
        }
    }
}
