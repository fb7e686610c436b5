//! Fields of pools that Argo CD applies from Git: a commit that adds, changes or removes a field is noticed and applied, and the
//! pool is Synced afterwards.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use api::WindowsNodePool;
use futures::future::join_all;
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use testbed::{ControlPlane, ControlPlaneOptions, deployment};

use super::{
    application::{Argo, How},
    fields::{self, Field},
};

/// Names of Applications, and the settings of each.
const WAYS: [(&str, How); 4] = [
    ("neither", How { diff: false, apply: false, automated: false }),
    ("diff", How { diff: true, apply: false, automated: false }),
    ("apply", How { diff: false, apply: true, automated: false }),
    ("both", How { diff: true, apply: true, automated: false }),
];

/// Returns the name of a field's pool.
fn name(way: &str, field: usize) -> String {
    format!("{way}-{field}")
}

/// Returns the file of a commit: a pool for each field, with one of the field's specs.
fn file(way: &str, fields: &[Field], time: usize) -> String {
    let pool = |(n, field): (usize, &Field)| {
        let (version, name, spec) = ("windowsmachineconfig.openshift.io/v1alpha1", name(way, n), &field.specs[time]);
        let pool = json!({"apiVersion": version, "kind": "WindowsNodePool", "metadata": {"name": name}, "spec": spec});
        format!("---\n{pool}\n")
    };
    fields.iter().enumerate().map(pool).collect()
}

/// Returns the specs of all pools in the cluster, by name.
async fn specs(client: &Client) -> Result<BTreeMap<String, Value>> {
    let pools: Api<kube::api::DynamicObject> =
        Api::all_with(client.clone(), &kube::api::ApiResource::erase::<WindowsNodePool>(&()));
    let all = pools.list(&ListParams::default()).await?.items;
    Ok(all.into_iter().map(|pool| (pool.name_any(), pool.data["spec"].clone())).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_adds_changes_or_removes_any_field_is_seen_and_applied() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install(&control_plane).await?;
    let Some(argo) = Argo::start(&control_plane).await? else { return Ok(()) };
    let client = control_plane.client().await?;
    let fields = fields::all()?;
    let (mut faults, mut without_apply) = (Vec::new(), Vec::new());
    for (what, from, to) in [("made", 0, 0), ("added", 0, 1), ("changed", 1, 2), ("removed", 2, 0)] {
        for (way, _) in WAYS {
            argo.origin.write(&format!("{way}/pools.yaml"), file(way, &fields, to));
        }
        argo.origin.commit_all(what);
        if what == "made" {
            for (way, how) in WAYS {
                argo.create(way, way, how).await?;
            }
        }
        for (way, found) in join_all(WAYS.map(|(way, _)| after_commit(&argo, &client, way, &fields, from, to))).await {
            let told = match found {
                Ok(found) => found.into_iter().map(|(fault, paths)| format!("{fault}: {}", paths.join(" "))).collect(),
                Err(error) => vec![format!("{error:#}")],
            };
            let of_way = if way == "diff" { &mut without_apply } else { &mut faults };
            of_way.extend(told.into_iter().map(|fault| format!("{what}, {way}: {fault}\n")));
        }
    }
    ensure!(faults.is_empty(), "of {} fields:\n{}", fields.len(), faults.concat());
    // The server-side dry run does not remove fields that client-side apply has set, as the guide explains.
    let blind = without_apply.iter().any(|fault| fault.starts_with("removed") && fault.contains("not seen"));
    ensure!(blind, "ServerSideDiff=true without ServerSideApply=true sees removals now: {without_apply:?}");
    Ok(())
}

/// Compares, syncs and compares again. Returns the failures, with the fields.
async fn after_commit(
    argo: &Argo,
    client: &Client,
    way: &'static str,
    fields: &[Field],
    from: usize,
    to: usize,
) -> (&'static str, Result<Vec<(&'static str, Vec<String>)>>) {
    (way, compared_and_synced(argo, client, way, fields, from, to).await)
}

async fn compared_and_synced(
    argo: &Argo,
    client: &Client,
    way: &str,
    fields: &[Field],
    from: usize,
    to: usize,
) -> Result<Vec<(&'static str, Vec<String>)>> {
    let found = |what, is_so: &dyn Fn(usize, &Field) -> bool| {
        let all = fields.iter().enumerate().filter(|(n, field)| is_so(*n, field));
        let paths: Vec<_> = all.map(|(_, field)| field.path.clone()).collect();
        (!paths.is_empty()).then_some((what, paths))
    };
    let before = out_of_sync(argo, way).await?;
    let not_seen =
        found("not seen", &|n, field| field.specs[from] != field.specs[to] && !before.contains(&name(way, n)));
    argo.sync(way).await?;
    let specs = specs(client).await?;
    let not_applied = found("not applied", &|n, field| specs.get(&name(way, n)) != Some(&field.specs[to]));
    let after = out_of_sync(argo, way).await?;
    let differs = found("not Synced afterwards", &|n, _| after.contains(&name(way, n)));
    Ok([not_seen, not_applied, differs].into_iter().flatten().collect())
}

/// Returns the names of pools that differ from the newest commit.
async fn out_of_sync(argo: &Argo, way: &str) -> Result<Vec<String>> {
    let compared = argo.compare(way).await?;
    Ok(compared.into_iter().filter(|one| !one.is_synced).map(|one| one.name).collect())
}
