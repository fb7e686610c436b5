//! Makes a host pull and pin the images of its pool's `provisioning.prePullImages`, one per reconcile, so that a changed grant takes effect in
//! between. It may end anywhere: what may be pinned is stored before the host is asked, and a repeated request finds existing images.

use std::time::Duration;

use api::{
    Grant, GrantType, Step,
    host::{Body, Pull, Verb},
};
use kube::runtime::controller::Action;

use super::{error::StepError, identity::prove, login, scope::Scope};
use crate::runtime::{clock, events::EventReason};
use remote::Session;
use wnp_core::{operation::identity::Purpose, rollout::image_pull};

/// Time limit for the pull of one image. What was downloaded by then stays on the host, and the next attempt continues.
const TIMEOUT: Duration = Duration::from_mins(30);

/// Margin in which wicd reports a timeout of the pull, before the operator's own timeout.
const MARGIN: Duration = Duration::from_secs(15);

/// Minimum wait of a host for a free slot. The maximum is twice as long.
const NO_PLACE: Duration = Duration::from_secs(15);

/// Reports whether the operation is an image pull on a host that must stay.
pub(super) fn is_in_progress(scope: &Scope) -> bool {
    !scope.leaving() && scope.status.operation.as_ref().is_some_and(|o| o.type_ == GrantType::PullImages)
}

/// Finds the missing images, unpins images that are no longer listed, and pulls the next one.
pub(super) async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    let Some(_place) = scope.cx.hosts.pulls.take(&scope.instance.spec.pool_ref.name) else {
        return Ok(Action::requeue(NO_PLACE.mul_f64(1.0 + rand::random::<f64>())));
    };
    // Images pulled by this operation must still exist. Otherwise, a host could keep its operation and its slot forever.
    let goes_on = is_in_progress(scope) && scope.step() == Step::PullImages;
    scope.start_operation(grant, Step::Connect);
    let images = scope.pool.spec.pre_pull_images().to_vec();
    let pulled = scope.status.record().pre_pulled.get_or_insert_default();
    pulled.failures = image_pull::failures(pulled, &images).cloned();
    pulled.requested.clone_from(&images);
    let host = scope.instance.spec.host.clone();
    let what = format!("logging in to {} port {} as {}", host.address, host.port, host.username);
    scope.enter_step(Step::Connect, &what).await?;
    let mut target = login::login(&scope.cx, &scope.instance, &scope.pool).await?;
    target.command_timeout = TIMEOUT;
    let mut session = login::open_without_slot(&scope.cx, &scope.instance, &grant.id, &target).await?;
    session.prepare().await?;
    let state = session.look(&[]).await?;
    prove(scope, &mut session, &state, Purpose::Keep)?;
    scope.record_identity(session.connection());
    let request = Request { images, limit: TIMEOUT.saturating_sub(MARGIN) };
    let had = scope.status.pre_pulled.as_ref().filter(|_| goes_on).map(|p| p.images.clone()).unwrap_or_default();
    let mut missing = request.send(scope, &session, None).await?;
    if let Some(image) = had.into_iter().find(|image| missing.contains(image)) {
        return Err(StepError::ImageNotKept { image });
    }
    let failures = scope.status.pre_pulled.as_ref().and_then(|p| p.failures.clone());
    if let Some(image) = image_pull::next(&missing, failures.as_ref()).cloned() {
        let number = request.images.len() - missing.len() + 1;
        let what = format!("pulling image {number} of {}: {image}", request.images.len());
        scope.enter_step(Step::PullImages, &what).await?;
        missing = request.send(scope, &session, Some(&image)).await?;
        if missing.contains(&image) {
            return Err(StepError::ImageNotKept { image });
        }
    }
    session.tidy(&[Verb::Facts, Verb::Pull]).await?;
    session.close().await;
    if missing.is_empty() {
        return Ok(done(scope, &request.images));
    }
    scope.save().await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Images that the host must have, and the time limit of a pull.
struct Request {
    images: Vec<String>,
    limit: Duration,
}

impl Request {
    /// Sends the request, and records the images on the host. Returns the missing ones.
    async fn send(
        &self,
        scope: &mut Scope,
        session: &Session,
        pull: Option<&String>,
    ) -> Result<Vec<String>, StepError> {
        let images = self.images.clone();
        let body = Pull { images, pull: pull.cloned(), limit_seconds: self.limit.as_secs() };
        let answer = session.ask(Body::Pull(body)).await?;
        let missing = image_pull::missing(&self.images, &answer.missing_images);
        let pulled = scope.status.record().pre_pulled.get_or_insert_default();
        pulled.images = self.images.iter().filter(|image| !missing.contains(image)).cloned().collect();
        pulled.checked_time = Some(clock::now().into());
        Ok(missing)
    }
}

fn done(scope: &mut Scope, images: &[String]) -> Action {
    if images.is_empty() {
        scope.status.record().pre_pulled = None;
    } else {
        if let Some(pulled) = &mut scope.status.record().pre_pulled {
            pulled.failures = None;
        }
        let note = format!("the host has all images that it pulls ahead ({})", images.len());
        scope.cx.events.say(&*scope.instance, EventReason::ImagesPulled, Step::PullImages.as_str(), &note);
    }
    scope.end_operation();
    Action::await_change()
}

/// Records a failure. The node stays unchanged, other operations on it continue, and the images are tried again later.
pub(super) async fn failed(scope: &mut Scope, error: &StepError) -> Result<Duration, StepError> {
    let before = scope.status.pre_pulled.clone().unwrap_or_default();
    let (failures, wait) = scope.next_failure(before.failures.as_ref(), error);
    if error.is_unreachable() && failures.step == Step::Connect {
        scope.mark_unreachable(error);
    }
    scope.note_refusal(error).await;
    let (reason, step) = (error.reason(), failures.step);
    scope.cx.process.metrics.failed(&scope.instance.spec.pool_ref.name, reason);
    let note = format!("{reason}: {step}: {error}");
    scope.cx.events.say(&*scope.instance, EventReason::PrePullFailed, step.as_str(), &note);
    scope.status.record().pre_pulled = Some(api::PrePulled { failures: Some(failures), ..before });
    scope.drop_operation();
    scope.save().await?;
    Ok(wait)
}
