//! Makes a host pull and pin the images of its pool's `provisioning.prePullImages`, one per reconcile, so that a changed grant takes effect in
//! between. A pull can be interrupted at any point: the list of images is stored before the host pins any of them, and a repeated request finds the
//! images that exist.

use std::time::Duration;

use api::{
    Grant, GrantType, Step,
    host::{Body, Pull, Verb},
};
use kube::runtime::controller::Action;

use super::{error::StepError, identity::prove, idle_session, login, scope::Scope};
use crate::runtime::{clock, events::EventReason};
use remote::Session;
use wnp_core::{operation::identity::Purpose, rollout::image_pull};

/// Time limit for the pull of one image. Layers that were downloaded by then stay on the host, and the next attempt continues with the others.
const TIMEOUT: Duration = Duration::from_mins(30);

/// Difference between the time limit of wicd for a pull and the longer one of the operator, so that wicd can report its timeout.
const MARGIN: Duration = Duration::from_secs(15);

/// Finds the missing images, unpins images that are no longer listed, and pulls the next one.
pub(super) async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    let Some(_slot) = scope.cx.hosts.pulls.take(&scope.instance.spec.pool_ref.name) else {
        return Ok(Action::requeue(idle_session::until_next_slot()));
    };
    let goes_on = scope.is_in_progress(GrantType::PullImages) && scope.step() == Step::PullImages;
    scope.start_operation(grant, Step::Connect);
    let images = scope.pool.spec.pre_pull_images().to_vec();
    let pulled = scope.status.record().pre_pulled.get_or_insert_default();
    pulled.failures = image_pull::failures(pulled, &images).cloned();
    pulled.requested.clone_from(&images);
    scope.enter_step(Step::Connect, &scope.logging_in()).await?;
    let mut target = login::login(&scope.cx, &scope.instance, &scope.pool).await?;
    target.command_timeout = TIMEOUT;
    let mut session = login::open_without_slot(&scope.cx, &scope.instance, &grant.id, &target).await?;
    session.prepare().await?;
    let state = session.look(&[]).await?;
    prove(scope, &mut session, &state, Purpose::Keep)?;
    scope.record_identity(session.connection());
    let pulled_before =
        scope.status.pre_pulled.as_ref().filter(|_| goes_on).map(|p| p.images.clone()).unwrap_or_default();
    let mut missing = request(scope, &session, &images, None).await?;
    // Images pulled by this operation must still exist. Otherwise, a host could keep its operation and its slot forever.
    if let Some(image) = pulled_before.into_iter().find(|image| missing.contains(image)) {
        return Err(StepError::ImageNotKept { image });
    }
    let failures = scope.status.pre_pulled.as_ref().and_then(|p| p.failures.clone());
    if let Some(image) = image_pull::next(&missing, failures.as_ref()).cloned() {
        let number = images.len() - missing.len() + 1;
        let what = format!("pulling image {number} of {}: {image}", images.len());
        scope.enter_step(Step::PullImages, &what).await?;
        missing = request(scope, &session, &images, Some(&image)).await?;
        if missing.contains(&image) {
            return Err(StepError::ImageNotKept { image });
        }
    }
    session.tidy(&[Verb::Facts, Verb::Pull]).await?;
    session.close().await;
    if missing.is_empty() {
        return Ok(done(scope, &images));
    }
    scope.save().await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Sends the list of images to the host, with the image to pull, if any. Records the images that the host has, and returns the missing ones.
async fn request(
    scope: &mut Scope,
    session: &Session,
    images: &[String],
    pull: Option<&String>,
) -> Result<Vec<String>, StepError> {
    let limit_seconds = TIMEOUT.saturating_sub(MARGIN).as_secs();
    let body = Pull { images: images.to_vec(), pull: pull.cloned(), limit_seconds };
    let answer = session.ask(Body::Pull(body)).await?;
    let missing = image_pull::missing(images, &answer.missing_images);
    let pulled = scope.status.record().pre_pulled.get_or_insert_default();
    pulled.images = images.iter().filter(|image| !missing.contains(image)).cloned().collect();
    pulled.checked_time = Some(clock::now().into());
    Ok(missing)
}

fn done(scope: &mut Scope, images: &[String]) -> Action {
    if images.is_empty() {
        scope.status.record().pre_pulled = None;
    } else {
        if let Some(pulled) = &mut scope.status.record().pre_pulled {
            pulled.failures = None;
        }
        let note = format!("the host has all images of provisioning.prePullImages ({})", images.len());
        scope.say(EventReason::ImagesPulled, Step::PullImages.as_str(), &note);
    }
    scope.end_operation();
    Action::await_change()
}

/// Records a failed pull, and returns the wait until the next attempt.
pub(super) async fn failed(scope: &mut Scope, error: &StepError) -> Result<Duration, StepError> {
    let before = scope.status.pre_pulled.clone().unwrap_or_default();
    let (failures, wait) = scope.fail_side_operation(before.failures.as_ref(), error, EventReason::PrePullFailed).await;
    scope.status.record().pre_pulled = Some(api::PrePulled { failures: Some(failures), ..before });
    scope.save().await?;
    Ok(wait)
}
