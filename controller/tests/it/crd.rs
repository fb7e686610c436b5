//! Pools and instances that the API server accepts, and those that it refuses.

use std::collections::BTreeSet;

use anyhow::Result;
use api::{WindowsInstance, WindowsNodePool};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use serde_json::{Value, json};

use crate::cluster::{operator, shared};

/// Expected answer of the API server: accepted, or refused with a message that contains this text.
#[derive(Clone, Copy)]
pub(crate) enum Expected {
    Valid,
    Refused(&'static str),
}
use Expected::{Refused, Valid};

/// Returns an untyped API for pools, which can also send fields and values that the Rust types cannot express.
fn pools(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<WindowsNodePool>(&()))
}

fn instances(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<WindowsInstance>(&()))
}

pub(crate) fn host(name: &str) -> Value {
    json!({"name": name, "address": "10.0.0.1"})
}

/// Returns a valid pool with `patch` merged into its spec.
pub(crate) fn pool(name: &str, patch: &Value) -> Value {
    let mut spec = json!({"inventory": {"hosts": [host("win-1")]}});
    merge(&mut spec, patch);
    let (group, kind) = ("windowsmachineconfig.openshift.io/v1alpha1", "WindowsNodePool");
    json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Applies a merge patch (RFC 7386).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn judge(case: &str, result: kube::Result<DynamicObject>, verdict: Expected) -> Option<String> {
    match (result, verdict) {
        (Ok(_), Valid) => None,
        (Err(kube::Error::Api(status)), Refused(why)) if status.message.contains(why) => None,
        (Ok(_), Refused(why)) => Some(format!("{case}: accepted, but should be refused with {why:?}")),
        (Err(kube::Error::Api(status)), Refused(why)) => {
            Some(format!("{case}: wanted {why:?}, got {}", status.message))
        }
        (Err(kube::Error::Api(status)), Valid) => Some(format!("{case}: refused: {}", status.message)),
        (Err(error), _) => Some(format!("{case}: {error}")),
    }
}

/// Creates each pool in a dry run, and compares the answers with the verdicts.
pub(crate) async fn check(cases: Vec<(String, Value, Expected)>) -> Result<()> {
    let pools = pools(shared().await?.client().await?);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut wrong = Vec::new();
    for (case, body, verdict) in cases {
        let object: DynamicObject = serde_json::from_value(body)?;
        wrong.extend(judge(&case, pools.create(&dry_run, &object).await, verdict));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Returns cases of pools with a patch merged into a valid spec, named after the patch.
pub(crate) fn specs(cases: impl IntoIterator<Item = (Value, Expected)>) -> Vec<(String, Value, Expected)> {
    cases.into_iter().map(|(patch, verdict)| (patch.to_string(), pool("case", &patch), verdict)).collect()
}

#[tokio::test]
async fn clusters_to_take_over_from_are_validated() -> Result<()> {
    let from = |clusters: Value| json!({"takeOverFrom": clusters});
    let id = "0b0d5b4c-7a0e-4f3b-9a53-6c6b7f0d9a11";
    check(specs([
        (from(json!([id])), Valid),
        (from(json!([id, "unknown"])), Valid),
        (from(json!([])), Refused("should have at least 1 items")),
        (from(json!(["production"])), Refused("must be the UID of a cluster's kube-system Namespace")),
        (from(json!(["*"])), Refused("must be the UID of a cluster's kube-system Namespace")),
        (from(json!([id, id])), Refused("Duplicate value")),
        (
            from((0..17).map(|n| json!(format!("0b0d5b4c-7a0e-4f3b-9a53-6c6b7f0d9a{n:02}"))).collect()),
            Refused("must have at most 16 items"),
        ),
    ]))
    .await
}

#[tokio::test]
async fn ssh_settings_are_validated() -> Result<()> {
    let key = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    let with_key = json!({"name": "win-1", "address": "10.0.0.1", "hostKey": key});
    let strict = |patch: Value| {
        let mut spec = json!({"ssh": {"hostKeyPolicy": "Strict"}});
        merge(&mut spec, &patch);
        spec
    };
    let ssh = |patch: Value| json!({"ssh": patch});
    let needs = "hostKeyPolicy Strict needs ssh.knownHostsSecretRef";
    check(specs([
        (strict(json!({})), Refused(needs)),
        (strict(json!({"ssh": {"knownHostsSecretRef": {"name": "known"}}})), Valid),
        (strict(json!({"inventory": {"hosts": [with_key]}})), Valid),
        (strict(json!({"inventory": {"hosts": [with_key, host("win-2")]}})), Refused(needs)),
        (ssh(json!({"hostKeyPolicy": "TrustOnFirstUse"})), Valid),
        (ssh(json!({"hostKeyPolicy": "Any"})), Refused("Unsupported value")),
        (ssh(json!({"privateKeySecretRefs": []})), Refused("should have at least 1 items")),
        (ssh(json!({"privateKeySecretRefs": vec![json!({"name": "k"}); 8]})), Valid),
        (ssh(json!({"privateKeySecretRefs": vec![json!({"name": "k"}); 9]})), Refused("must have at most 8 items")),
    ]))
    .await
}

#[tokio::test]
async fn rollouts_and_drains_are_validated() -> Result<()> {
    let valid = [json!(1), json!(1000), json!("1%"), json!("99%"), json!("100%")].map(|value| (value, Valid));
    let wrong =
        [json!(0), json!(-1), json!("0%"), json!("101%"), json!("10"), json!("ten"), json!("1.5%"), json!(" 1%")];
    let wrong = wrong.map(|value| (value, Refused("must be a whole number of at least 1, or a percentage")));
    let limit = |(value, verdict)| (json!({"rollout": {"maxUnavailable": value}}), verdict);
    let mut cases = specs(valid.into_iter().chain(wrong).map(limit));
    let drain = |drain: Value| json!({"drain": drain});
    let force = "onTimeout Force deletes pods against their disruption budgets";
    cases.extend(specs([
        (json!({"rollout": {"maxUnavailable": 1.5}}), Refused("must be of type integer")),
        (drain(json!({"onTimeout": "Wait", "timeoutSeconds": 0})), Valid),
        (drain(json!({"onTimeout": "Abort"})), Valid),
        (drain(json!({"onTimeout": "Force", "timeoutSeconds": 60})), Valid),
        (drain(json!({"onTimeout": "Force", "timeoutSeconds": 59})), Refused(force)),
        (drain(json!({"onTimeout": "Force"})), Refused(force)),
        (drain(json!({"onTimeout": "Force", "timeoutSeconds": 0})), Refused(force)),
        (drain(json!({"onTimeout": "Kill"})), Refused("Unsupported value")),
        (drain(json!({"gracePeriodSeconds": 0})), Refused("greater than or equal to 1")),
        (drain(json!({"podRules": [{"behavior": "Skip", "selector": {"matchLabels": {"a": "b"}}}]})), Valid),
        (drain(json!({"podRules": [{}]})), Refused("Required value")),
        (drain(json!({"podRules": vec![json!({"behavior": "Drain"}); 33]})), Refused("must have at most 32 items")),
        (json!({"provisioning": {"maxConcurrent": 100}}), Valid),
        (json!({"provisioning": {"maxConcurrent": 0}}), Refused("greater than or equal to 1")),
        (json!({"provisioning": {"maxConcurrent": 101}}), Refused("less than or equal to 100")),
        (json!({"rollout": {"progressDeadlineSeconds": 59}}), Refused("greater than or equal to 60")),
        (json!({"rollout": {"pausedUntil": "2027-01-01T08:00:00+01:00"}}), Valid),
        (json!({"rollout": {"pausedUntil": "2001-01-01T00:00:00Z"}}), Valid),
        (json!({"rollout": {"pausedUntil": "0001-01-01T00:00:00Z"}}), Refused("after 1970")),
        (json!({"rollout": {"pausedUntil": "2027-01-01"}}), Refused("date-time")),
        (json!({"deletionPolicy": "Orphan"}), Valid),
        (json!({"deletionPolicy": "Destroy"}), Refused("Unsupported value")),
    ]));
    check(cases).await
}

#[tokio::test]
async fn steps_and_reactions_to_failures_are_validated() -> Result<()> {
    let step = |step: Value| json!({"rollout": {"steps": [step]}});
    let pull = |images: Value| json!({"provisioning": {"prePullImages": images}});
    let (either, number) = ("a step has either pauseSeconds or approval: true", "must be a whole number of at least 1");
    check(specs([
        (step(json!({"nodes": 1, "pauseSeconds": 0})), Valid),
        (step(json!({"nodes": "10%", "approval": true})), Valid),
        (step(json!({"nodes": 1, "pauseSeconds": 60, "approval": false})), Valid),
        (step(json!({"nodes": 1})), Refused(either)),
        (step(json!({"nodes": 1, "approval": false})), Refused(either)),
        (step(json!({"nodes": 1, "pauseSeconds": 60, "approval": true})), Refused(either)),
        (step(json!({"pauseSeconds": 60})), Refused("Required value")),
        (step(json!({"nodes": 0, "pauseSeconds": 60})), Refused(number)),
        (step(json!({"nodes": "10", "pauseSeconds": 60})), Refused(number)),
        (step(json!({"nodes": "0100%", "pauseSeconds": 60})), Refused("Too long")),
        (step(json!({"nodes": 1, "pauseSeconds": -1})), Refused("greater than or equal to 0")),
        (step(json!({"nodes": 1, "pauseSeconds": 2_592_000})), Valid),
        (step(json!({"nodes": 1, "pauseSeconds": 2_592_001})), Refused("less than or equal to")),
        (json!({"rollout": {"steps": vec![json!({"nodes": 1, "approval": true}); 10]}}), Valid),
        (
            json!({"rollout": {"steps": vec![json!({"nodes": 1, "approval": true}); 11]}}),
            Refused("must have at most 10 items"),
        ),
        (json!({"rollout": {"approvedVersion": "1.0.0-abc"}}), Valid),
        (json!({"rollout": {"approvedVersion": ""}}), Refused("at least 1 chars")),
        (json!({"rollout": {"maxFailures": "5%", "onFailure": "Rollback"}}), Valid),
        (json!({"rollout": {"maxFailures": 0}}), Refused(number)),
        (json!({"rollout": {"onFailure": "Explode"}}), Refused("Unsupported value")),
        (pull(json!(["mcr.microsoft.com/windows/servercore:ltsc2022", "localhost/a:1"])), Valid),
        (pull(json!([format!("r:5000/a/b-c@sha256:{}", "0".repeat(64))])), Valid),
        (pull(json!([format!("r.example/a:1@sha256:{}", "0".repeat(64))])), Valid),
        (pull(json!(["servercore:ltsc2022"])), Refused("must be images with a registry")),
        (pull(json!(["library/app:1"])), Refused("must be images with a registry")),
        (pull(json!(["r.example/app"])), Refused("must be images with a registry")),
        (pull(json!(["r.example/app@sha256:0"])), Refused("must be images")),
        (pull(json!(["r.example/app:1 x"])), Refused("must be images with a registry")),
        (pull(json!([])), Refused("at least 1 items")),
        (pull(json!(["r.example/a:1", "r.example/a:1"])), Refused("Duplicate value")),
        (
            pull(json!((0..33).map(|n| format!("r.example/a:{n}")).collect::<Vec<_>>())),
            Refused("must have at most 32 items"),
        ),
        (json!({"rollout": {"ignoreLostAfterSeconds": 0}}), Valid),
        (json!({"rollout": {"minReadySeconds": 3601}}), Refused("less than or equal to 3600")),
    ]))
    .await
}

#[tokio::test]
async fn maintenance_windows_are_validated() -> Result<()> {
    let windows = |list: Vec<Value>| json!({"rollout": {"maintenanceWindows": list}});
    let night = || json!({"schedule": "0 2 * * *", "durationSeconds": 7200});
    let one = |patch: Value| {
        let mut window = night();
        merge(&mut window, &patch);
        windows(vec![window])
    };
    check(specs([
        (one(json!({})), Valid),
        (one(json!({"timeZone": "America/Argentina/Buenos_Aires"})), Valid),
        (one(json!({"timeZone": ""})), Refused("at least 1 chars")),
        (one(json!({"timeZone": "Europe/Par is"})), Refused("must be the name of a time zone")),
        (one(json!({"schedule": null})), Refused("Required value")),
        (one(json!({"schedule": "0 2 * *"})), Refused("at least 9 chars")),
        (one(json!({"schedule": "0 ".repeat(65)})), Refused("may not be more than 128")),
        (one(json!({"schedule": "*/20 1-9/4,20 15W apr-SEP TUE#2"})), Valid),
        (one(json!({"schedule": "0 0 * * 5L"})), Valid),
        (one(json!({"schedule": "0 0 2 * * *"})), Refused("must be a cron expression of five fields")),
        (one(json!({"schedule": "@monthly!"})), Refused("must be a cron expression of five fields")),
        (one(json!({"schedule": "0 two * * *"})), Refused("must be a cron expression of five fields")),
        (one(json!({"durationSeconds": null})), Refused("Required value")),
        (one(json!({"durationSeconds": 840})), Refused("greater than or equal to 900")),
        (one(json!({"durationSeconds": 900})), Valid),
        (one(json!({"durationSeconds": 604_800})), Valid),
        (one(json!({"durationSeconds": 604_801})), Refused("less than or equal to 604800")),
        (windows(vec![night(); 16]), Valid),
        (windows(vec![night(); 17]), Refused("must have at most 16 items")),
    ]))
    .await
}

#[tokio::test]
async fn remediation_and_mode_are_validated() -> Result<()> {
    let remediation = |remediation: Value| json!({"remediation": remediation});
    check(specs([
        (json!({"mode": "Plan"}), Valid),
        (json!({"mode": "Apply"}), Valid),
        (json!({"mode": "plan"}), Refused("Unsupported value")),
        (
            remediation(json!({"type": "Reboot", "notReadySeconds": 30, "maxUnhealthy": "40%", "drift": "Report"})),
            Valid,
        ),
        (remediation(json!({"notReadySeconds": 29})), Refused("greater than or equal to 30")),
        (remediation(json!({"type": "Replace"})), Refused("Unsupported value")),
        (remediation(json!({"drift": "Ignore"})), Refused("Unsupported value")),
        (remediation(json!({"maxUnhealthy": 0})), Refused("must be a whole number of at least 1")),
    ]))
    .await
}

#[tokio::test]
async fn a_pools_name_fits_into_a_label() -> Result<()> {
    let case = |n: usize, verdict| (format!("{n} characters"), pool(&"p".repeat(n), &json!({})), verdict);
    check(vec![case(63, Valid), case(64, Refused("the name of a pool must have at most 63 characters"))]).await
}

#[tokio::test]
async fn examples_are_accepted() -> Result<()> {
    let cases = api::examples().into_iter().map(|example| {
        let mut pool = serde_json::to_value(example.pool).unwrap();
        pool["metadata"] = json!({"name": example.name});
        (example.name.to_owned(), pool, Valid)
    });
    check(cases.collect()).await
}

#[tokio::test]
async fn the_api_server_adds_nothing_to_a_spec_and_says_that_the_status_is_not_yet_observed() -> Result<()> {
    let pools = pools(shared().await?.client().await?);
    // The spec has every object in which the schema could set a default.
    let spec = json!({"ssh": {}, "template": {"metadata": {}, "spec": {}}, "provisioning": {}, "rollout": {}, "drain": {"podRules": [{"behavior": "Drain"}]}});
    let body = pool("crd-defaults", &spec);
    let made = pools.create(&PostParams::default(), &serde_json::from_value(body.clone())?).await?;
    assert_eq!(made.data["spec"], body["spec"]);
    assert_eq!(made.data["status"], json!({"observedGeneration": -1}));
    Ok(())
}

/// Collects the paths of fields that the schema has and the object lacks, within the object's own objects and lists.
fn absent(object: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(items) = object.as_array() {
        for (index, item) in items.iter().enumerate() {
            absent(item, &schema["items"], &format!("{path}/{index}"), found);
        }
        return;
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        match object.get(name) {
            Some(value) if value.is_object() || value.is_array() => absent(value, field, &path, found),
            Some(_) => {}
            None => found.push(path),
        }
    }
}

#[tokio::test]
async fn a_null_is_a_field_that_is_not_set() -> Result<()> {
    let pools = pools(shared().await?.client().await?);
    let crd = serde_json::to_value(api::crds().remove(0))?;
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut fields = BTreeSet::new();
    for example in api::examples() {
        let mut body = serde_json::to_value(example.pool)?;
        body["metadata"] = json!({"name": format!("crd-nulls-{}", example.name)});
        let expected = body["spec"].clone();
        let mut paths = Vec::new();
        absent(&expected, schema, "", &mut paths);
        for path in &paths {
            let (parent, name) = path.rsplit_once('/').unwrap();
            body["spec"].pointer_mut(parent).unwrap()[name] = Value::Null;
        }
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let made = pools.create(&dry_run, &serde_json::from_value(body)?).await?;
        assert_eq!(made.data["spec"], expected, "{}", example.name);
        fields.extend(paths);
    }
    assert!(fields.contains("/ssh") && fields.contains("/inventory/hosts/0/port"), "{fields:?}");
    Ok(())
}

/// Collects the paths of schemas in an OpenAPI document that do not describe their values: those without a type, objects without fields, and lists
/// without items. Argo CD and the OpenShift console treat such values as atomic.
fn without_type(schema: &Value, path: &str, found: &mut Vec<String>) {
    let says = |key: &str| schema.get(key).is_some();
    let is_reference = says("$ref") || says("x-kubernetes-int-or-string");
    let is_empty = match schema["type"].as_str() {
        Some("object") => !says("properties") && !says("additionalProperties"),
        Some("array") => !says("items"),
        Some(_) => false,
        None => !is_reference,
    };
    if is_empty {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        without_type(field, &format!("{path}.{name}"), found);
    }
    for inner in ["items", "additionalProperties"].iter().filter_map(|key| schema.get(*key)) {
        without_type(inner, &format!("{path}[]"), found);
    }
}

#[tokio::test]
async fn openapi_v2_has_a_type_for_every_object_and_list() -> Result<()> {
    let client = shared().await?.client().await?;
    let request = http::Request::get("/openapi/v2").body(Vec::new())?;
    let document: Value = serde_json::from_str(&client.request_text(request).await?)?;
    for kind in ["WindowsNodePool", "WindowsInstance"] {
        let schema = &document["definitions"][format!("io.openshift.windowsmachineconfig.v1alpha1.{kind}")];
        let mut found = Vec::new();
        without_type(schema, kind, &mut found);
        assert!(schema["properties"]["spec"]["properties"].is_object(), "{kind}: {schema}");
        assert_eq!(found, Vec::<String>::new());
    }
    Ok(())
}

/// Checks that the API server drops the null that server-side apply leaves where the last field of a block is removed.
#[tokio::test]
async fn each_block_can_be_removed_again() -> Result<()> {
    let pools = pools(shared().await?.client().await?);
    for example in api::examples() {
        let name = format!("crd-blocks-{}", example.name);
        let whole = serde_json::to_value(example.pool)?;
        let bare = pool(&name, &json!({}));
        for block in whole["spec"].as_object().unwrap().keys().filter(|block| *block != "inventory") {
            let mut with = bare.clone();
            with["spec"][block] = whole["spec"][block].clone();
            for body in [&with, &bare] {
                let applied = pools.patch(&name, &PatchParams::apply("team"), &Patch::Apply(body)).await?;
                assert_eq!(applied.data["spec"], body["spec"], "{name}: {block}");
            }
        }
    }
    Ok(())
}

/// Checks the answer to an empty block. The API server validates the request by the schema, and server-side apply then turns the block into a null,
/// which a field without `nullable` does not accept. The answer names the block, which the user must remove as a whole.
#[tokio::test]
async fn a_block_that_is_left_empty_is_refused_by_its_name() -> Result<()> {
    let pools = pools(shared().await?.client().await?);
    let apply = async |more: Value| {
        let body = pool("crd-empty", &more);
        pools.patch("crd-empty", &PatchParams::apply("team"), &Patch::Apply(body)).await
    };
    apply(json!({"rollout": {"paused": true}})).await?;
    let empty = apply(json!({"rollout": {}})).await;
    assert_eq!(judge("a block that is left empty", empty, Refused("spec.rollout: Invalid value: \"null\"")), None);
    apply(json!({})).await?;
    Ok(())
}

#[tokio::test]
async fn two_appliers_each_keep_their_own_hosts() -> Result<()> {
    let pools = pools(shared().await?.client().await?);
    let apply = async |manager: &str, hosts: &[&str]| {
        let hosts: Vec<_> = hosts.iter().map(|name| host(name)).collect();
        let body = pool("crd-appliers", &json!({"inventory": {"hosts": hosts}}));
        pools.patch("crd-appliers", &PatchParams::apply(manager), &Patch::Apply(body)).await
    };
    apply("team-a", &["win-a1", "win-a2"]).await?;
    apply("team-b", &["win-b1"]).await?;
    let pool = apply("team-a", &["win-a1"]).await?;
    let hosts = pool.data["spec"]["inventory"]["hosts"].as_array().unwrap();
    let names: BTreeSet<_> = hosts.iter().filter_map(|host| host["name"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["win-a1", "win-b1"]));
    Ok(())
}

fn instance(name: &str, pool: &str) -> DynamicObject {
    let host = json!({"name": name, "address": "10.0.0.1", "port": 22, "username": "Administrator", "privateKeys": [{"name": "k"}]});
    let (group, kind) = ("windowsmachineconfig.openshift.io/v1alpha1", "WindowsInstance");
    let spec = json!({"poolRef": {"name": pool}, "host": host});
    serde_json::from_value(json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}))
        .unwrap()
}

#[tokio::test]
async fn an_instance_has_the_name_of_its_host_and_keeps_it() -> Result<()> {
    let instances = instances(operator(shared().await?).await?);
    let made = instances.create(&PostParams::default(), &instance("crd-host", "crd")).await?;
    assert_eq!(made.data["status"], json!({"observedGeneration": -1}));
    let wrong = |patch: Value, verdict: Expected| {
        let instances = instances.clone();
        async move {
            let result = instances.patch("crd-host", &PatchParams::default(), &Patch::Merge(&patch)).await;
            judge(&patch.to_string(), result, verdict)
        }
    };
    let host = |patch: Value| json!({"spec": {"host": patch}});
    let grant = |id: &str, kind: &str| json!({"spec": {"grant": {"id": id, "type": kind, "grantedTime": "2027-01-01T00:00:00Z"}}});
    let verdicts = [
        wrong(host(json!({"name": "other"})), Refused("the name of a host cannot be changed")).await,
        wrong(host(json!({"address": "10.0.0.2"})), Valid).await,
        wrong(grant("provision-1", "Provision"), Valid).await,
        wrong(grant("Provision 1", "Provision"), Refused("should match")).await,
        wrong(grant("provision-1", "Format"), Refused("Unsupported value")).await,
    ];
    assert_eq!(verdicts.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());

    let mut misnamed = instance("crd-host-2", "crd");
    misnamed.metadata.name = Some("crd-host-3".into());
    let result = instances.create(&PostParams::default(), &misnamed).await;
    assert_eq!(judge("misnamed", result, Refused("metadata.name must be the name of the host")), None);
    Ok(())
}

#[tokio::test]
async fn instances_are_found_by_pool_and_phase() -> Result<()> {
    let control_plane = shared().await?;
    let instances = instances(operator(control_plane).await?);
    for (name, pool, phase) in
        [("crd-f1", "crd-f", "Ready"), ("crd-f2", "crd-f", "Failed"), ("crd-g1", "crd-g", "Ready")]
    {
        instances.create(&PostParams::default(), &instance(name, pool)).await?;
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        instances.patch_status(name, &PatchParams::default(), &status).await?;
    }
    for (selector, expected) in [
        ("spec.poolRef.name=crd-f", &["crd-f1", "crd-f2"][..]),
        ("spec.poolRef.name=crd-f,status.phase=Ready", &["crd-f1"]),
        ("spec.poolRef.name=crd-g,status.phase!=Ready", &[]),
    ] {
        let found = instances.list(&ListParams::default().fields(selector)).await?;
        let names: Vec<_> = found.items.iter().filter_map(|i| i.metadata.name.as_deref()).collect();
        assert_eq!(names, expected, "{selector}");
        let output = control_plane.kubectl(&["get", "wi", "-o", "name", "--field-selector", selector]).await?;
        assert_eq!(String::from_utf8(output.stdout)?.lines().count(), expected.len(), "kubectl: {selector}");
    }
    Ok(())
}
