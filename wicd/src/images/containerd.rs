//! Client of containerd, over gRPC on a stream of any kind: a named pipe on Windows, a socket in tests.
//!
//! Images are pulled through CRI, as kubelet does, so that mirrors, snapshotter and platform are the same. CRI has no call to pin an
//! image: it reads a label of containerd's image record. containerd has one record for the name and one for the ID of an image. Each further
//! pull resets the labels of the name's record, but not of the ID's record, so wicd labels the latter.

use std::future::Future;
use std::io;
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::messages::{
    AuthConfig, FieldMask, GetImageRequest, GetImageResponse, Image, ImageSpec, ImageStatusRequest,
    ImageStatusResponse, PullImageRequest, UpdateImageRequest,
};
use super::{ImageError, ImageStore, Login};

/// Label that marks a pinned image for CRI.
const PINNED: &str = "io.cri-containerd.pinned";
/// Value of [`PINNED`] for a pinned image.
const PINNED_VALUE: &str = "pinned";
/// containerd namespace with kubelet's images.
const NAMESPACE: &str = "k8s.io";
/// Time limit of calls other than pulls.
const PATIENCE: Duration = Duration::from_secs(30);

const PULL_IMAGE: &str = "/runtime.v1.ImageService/PullImage";
const IMAGE_STATUS: &str = "/runtime.v1.ImageService/ImageStatus";
const GET: &str = "/containerd.services.images.v1.Images/Get";
const UPDATE: &str = "/containerd.services.images.v1.Images/Update";

/// Connection to containerd.
pub struct Containerd {
    runtime: Runtime,
    channel: Channel,
    endpoint: String,
}

impl Containerd {
    /// Connects over a stream. `endpoint` is its name, for messages. Each stream is checked before a byte is sent, because another
    /// program may listen there.
    ///
    /// # Errors
    /// [`ImageError::Unavailable`] when there is no stream, or the check refuses it. [`ImageError::Timeout`] when the connection takes too long.
    pub fn connect<C, F, S, P>(endpoint: &str, connector: C, check: P) -> Result<Self, ImageError>
    where
        P: Fn(&S) -> io::Result<()> + Clone + Send + 'static,
        C: Fn() -> F + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let unavailable = |problem: String| ImageError::Unavailable { endpoint: endpoint.to_string(), problem };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| unavailable(e.to_string()))?;
        let service = tower::service_fn(move |_: Uri| {
            let (stream, check) = (connector(), check.clone());
            async move {
                let stream = stream.await?;
                check(&stream)?;
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        // The connector ignores this address.
        let endpoint_of_stream = Endpoint::from_static("http://containerd");
        let connecting = endpoint_of_stream.connect_with_connector(service);
        let channel = runtime.block_on(async { tokio::time::timeout(PATIENCE, connecting).await });
        let channel = match channel {
            Ok(channel) => channel.map_err(|e| unavailable(deepest(&e)))?,
            Err(_) => return Err(ImageError::Timeout { what: "connect".into(), seconds: PATIENCE.as_secs() }),
        };
        Ok(Self { runtime, channel, endpoint: endpoint.to_string() })
    }

    /// Calls a method of containerd. Returns `None` if containerd does not have the image.
    fn call<Q, A>(&self, path: &'static str, what: &str, request: Q, limit: Duration) -> Result<Option<A>, ImageError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let calling = async {
            grpc.ready().await.map_err(|e| Status::unavailable(deepest(&e)))?;
            let mut request = Request::new(request);
            request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
            grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(limit, calling).await });
        match answer {
            Err(_) => Err(ImageError::Timeout { what: what.to_string(), seconds: limit.as_secs() }),
            Ok(Ok(answer)) => Ok(Some(answer.into_inner())),
            // For a pull, this means that the registry does not have the image, which is an error.
            Ok(Err(status)) if status.code() == Code::NotFound && path != PULL_IMAGE => Ok(None),
            Ok(Err(status)) if status.code() == Code::Unavailable => {
                Err(ImageError::Unavailable { endpoint: self.endpoint.clone(), problem: status.message().to_string() })
            }
            Ok(Err(status)) => {
                Err(ImageError::Refused { what: what.to_string(), problem: status.message().to_string() })
            }
        }
    }

    fn record(&self, id: &str) -> Result<Option<Image>, ImageError> {
        let request = GetImageRequest { name: id.to_string() };
        let answer: Option<GetImageResponse> = self.call(GET, &format!("get image {id}"), request, PATIENCE)?;
        Ok(answer.and_then(|a| a.image))
    }
}

impl ImageStore for Containerd {
    fn find(&self, image: &str) -> Result<Option<String>, ImageError> {
        let request = ImageStatusRequest { image: Some(ImageSpec { image: image.to_string() }) };
        let what = format!("get the status of image {image}");
        let answer: Option<ImageStatusResponse> = self.call(IMAGE_STATUS, &what, request, PATIENCE)?;
        Ok(answer.and_then(|a| a.image).map(|i| i.id))
    }

    fn pull(&self, image: &str, login: Option<&Login>, limit: Duration) -> Result<(), ImageError> {
        let auth = login.map(|l| AuthConfig { username: l.username.clone(), password: l.password.clone() });
        let request = PullImageRequest { image: Some(ImageSpec { image: image.to_string() }), auth };
        let what = format!(
            "pull image {image} (check that it exists for the Windows version of the host, and that the pull secret has a login for its registry)"
        );
        self.call::<_, ()>(PULL_IMAGE, &what, request, limit).map(drop).map_err(|error| match error {
            ImageError::Timeout { seconds, .. } => ImageError::PullTimeout { image: image.to_string(), seconds },
            error => error,
        })
    }

    fn is_pinned(&self, id: &str) -> Result<bool, ImageError> {
        Ok(self.record(id)?.is_some_and(|i| i.labels.get(PINNED).is_some_and(|v| v == PINNED_VALUE)))
    }

    fn set_pinned(&self, id: &str, pinned: bool) -> Result<(), ImageError> {
        // containerd removes a label whose value is empty.
        let value = if pinned { PINNED_VALUE } else { "" };
        let image = Image { name: id.to_string(), labels: [(PINNED.to_string(), value.to_string())].into() };
        let update_mask = Some(FieldMask { paths: vec![format!("labels.{PINNED}")] });
        let what = format!("{} image {id}", if pinned { "pin" } else { "unpin" });
        let request = UpdateImageRequest { image: Some(image), update_mask };
        let answer: Option<()> = self.call(UPDATE, &what, request, PATIENCE)?;
        if pinned && answer.is_none() {
            return Err(ImageError::Refused { what, problem: "containerd no longer has the image".into() });
        }
        Ok(())
    }
}

/// Returns the deepest cause of an error, because the messages of transport errors do not include it.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[cfg(test)]
#[path = "containerd_tests.rs"]
mod tests;
