//! All objects of a platform in one file.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{
    kustomize::{HEADER_OF_RELEASE, document},
    object::Site,
    payload,
    platform::Platform,
};

/// The CRDs, the namespace and all else that a platform needs, with this image, and with the payload as a volume if it has an image of its own.
pub(crate) fn manifest(platform: Platform, image: &str, payload_image: Option<&str>) -> Result<String> {
    let site = Site { managed_by: "kubectl".into(), ..Site::default() };
    let mut objects = super::crds(&site)?;
    objects.extend(platform.objects(&super::objects(&site)));
    let deployment = objects.iter_mut().find(|object| object.kind() == "Deployment").context("no Deployment")?;
    deployment.value["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    for patch in payload_image.into_iter().flat_map(|payload| payload::Form::Volume.patches(image, payload)) {
        patch.apply(deployment);
    }
    let documents: Vec<String> = objects.iter().map(document).collect();
    Ok(format!("{HEADER_OF_RELEASE}{}", documents.join("---\n")))
}
