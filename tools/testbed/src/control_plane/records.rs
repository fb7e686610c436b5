//! Records of a cluster in etcd, and the return to an earlier state. The API server and the controllers see the changes by their watches.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::ControlPlane;
use crate::http;

/// First key of the API server's records, and the first one after them.
const KEYS: [&str; 2] = ["/registry/", "/registry0"];
/// Records that the programs of the control plane update all the time.
const OF_PROGRAMS: [&str; 2] = ["/registry/leases/", "/registry/masterleases/"];
/// Number of operations in one transaction of etcd.
const AT_ONCE: usize = 100;

/// Keys and values, both in Base64.
pub(crate) type Records = BTreeMap<String, String>;

impl ControlPlane {
    /// Returns all records of the API server.
    pub(crate) async fn records(&self) -> Result<Records> {
        let [key, range_end] = KEYS.map(|key| BASE64_STANDARD.encode(key));
        let answer = self.etcd("/v3/kv/range", &json!({"key": key, "range_end": range_end})).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let records = answer["kvs"].as_array().context("etcd has no records")?;
        Ok(records.iter().map(|record| (text(&record["key"]), text(&record["value"]))).collect())
    }

    /// Restores the records of an earlier time, except the values of those in [`OF_PROGRAMS`]. Fails if clients keep changing the records.
    pub(crate) async fn go_back_to(&self, earlier: &Records) -> Result<()> {
        for _ in 0..20 {
            let changes = changes(&self.records().await?, earlier);
            if changes.is_empty() {
                return Ok(());
            }
            for some in changes.chunks(AT_ONCE) {
                let answer = self.etcd("/v3/kv/txn", &json!({"success": some})).await?;
                ensure!(answer["succeeded"] == true, "etcd refuses to go back: {answer}");
            }
            // The next round sees the consequences of the change, such as a controller's reaction to it.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        anyhow::bail!("the records of the cluster keep changing")
    }

    async fn etcd(&self, path: &str, body: &Value) -> Result<Value> {
        let (_, answer) = http::request(self.etcd_address, "POST", path, &body.to_string()).await?;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Returns the operations of etcd that turn `now` into `earlier`. Earlier values of records in [`OF_PROGRAMS`] are not written.
fn changes(now: &Records, earlier: &Records) -> Vec<Value> {
    let is_of_programs = |key: &str| {
        let key = BASE64_STANDARD.decode(key).unwrap_or_default();
        OF_PROGRAMS.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
    };
    let put = earlier.iter().filter(|(key, value)| now.get(*key) != Some(value) && !is_of_programs(key));
    let delete = now.keys().filter(|key| !earlier.contains_key(*key));
    put.map(|(key, value)| json!({"request_put": {"key": key, "value": value}}))
        .chain(delete.map(|key| json!({"request_delete_range": {"key": key}})))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_return_to_an_earlier_state() {
        let records = |these: &[(&str, &str)]| -> Records {
            these.iter().map(|(key, value)| (BASE64_STANDARD.encode(key), (*value).to_owned())).collect()
        };
        let earlier = records(&[("/registry/a", "1"), ("/registry/b", "2"), ("/registry/leases/cm", "3")]);
        let key = |key: &str| BASE64_STANDARD.encode(key);
        let put = |name: &str, value: &str| json!({"request_put": {"key": key(name), "value": value}});
        let delete = |name: &str| json!({"request_delete_range": {"key": key(name)}});
        for (now, expected) in [
            (earlier.clone(), vec![]),
            (records(&[("/registry/b", "2"), ("/registry/leases/cm", "9")]), vec![put("/registry/a", "1")]),
            (
                records(&[("/registry/a", "9"), ("/registry/b", "2"), ("/registry/leases/of-a-test", "1")]),
                vec![put("/registry/a", "1"), delete("/registry/leases/of-a-test")],
            ),
        ] {
            assert_eq!(changes(&now, &earlier), expected);
        }
    }
}
