//! Keeps the certificate of `/metrics` valid.

use api::Reason;
use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{
    authority,
    certificate::{CertificateError, Files, Pair, Served},
};
use crate::args::Run;

/// Longest time between two looks.
const LONGEST_LOOK: Duration = Duration::from_mins(1);
/// Shortest.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// What is served and what comes next.
pub(super) struct Keeper {
    client: Client,
    served: Arc<Served>,
    namespace: String,
    domain: String,
    directory: PathBuf,
    lifetime: Duration,
    /// The files that are served.
    files: Option<Files>,
    /// The own pairs, as long as there are no files.
    own: Own,
    /// What was reported last, so that a fault that stays is reported once.
    reported: String,
}

/// Pairs that the operator has made.
#[derive(Default)]
struct Own {
    serving: Option<Pair>,
    next: Option<(Pair, Next)>,
}

/// How far the next pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// There is one.
    Made,
    /// Its authority is published since then.
    Published(Timestamp),
}

/// What is to be done with the own pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Make the next pair, and publish its authority.
    Make,
    /// Serve the next pair.
    Serve,
    /// Make a pair and serve it at once.
    Replace,
}

/// Decides by the wall clock, which may jump. A pair is published for a third of its life, served for another, and is
/// valid for a last one: a client that reads the ConfigMap late is not cut off.
fn due(serving: Option<Timestamp>, next: Option<Next>, now: Timestamp, lifetime: Duration) -> Due {
    let lifetime = SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::MAX);
    let third = lifetime / 3;
    let Some(serving) = serving else { return Due::Replace };
    let age = now.duration_since(serving);
    match next {
        // It is over, or was made in a future that a clock has been set back from.
        _ if age >= lifetime || age < -third => Due::Replace,
        Some(Next::Published(since)) if now.duration_since(since) >= third => Due::Serve,
        None if age >= third => Due::Make,
        Some(_) | None => Due::Nothing,
    }
}

impl Keeper {
    pub(super) fn new(args: &Run, client: Client, served: Arc<Served>) -> Self {
        Self {
            client,
            served,
            namespace: args.namespace.clone(),
            domain: args.cluster_domain.clone(),
            directory: args.metrics_tls_directory.clone(),
            lifetime: args.metrics_tls_lifetime,
            files: None,
            own: Own::default(),
            reported: String::new(),
        }
    }

    /// Keeps it until `stop`.
    pub(super) async fn keep(mut self, stop: CancellationToken) {
        let pause = (self.lifetime / 60).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        loop {
            let wait = async {
                self.publish(Timestamp::now()).await;
                tokio::time::sleep(pause).await;
            };
            if stop.run_until_cancelled(wait).await.is_none() {
                return;
            }
            self.serve(Timestamp::now());
        }
    }

    /// Serves what is due.
    pub(super) fn serve(&mut self, now: Timestamp) {
        match self.serve_files() {
            Ok(true) => {
                self.own = Own::default();
                return;
            }
            Ok(false) => self.files = None,
            Err(error) => {
                self.report(error.reason(), &error.to_string());
                if self.files.is_some() {
                    // They stay what is served, until they are right or gone.
                    return;
                }
            }
        }
        if let Err(error) = self.serve_own(now) {
            self.report(error.reason(), &error.to_string());
        }
    }

    /// Serves the files, if they are there.
    fn serve_files(&mut self) -> Result<bool, CertificateError> {
        let Some(files) = Files::read(&self.directory)? else { return Ok(false) };
        if self.files.as_ref() != Some(&files) {
            self.served.swap(Arc::new(files.parse()?));
            self.reported.clear();
            tracing::info!(directory = %self.directory.display(), "metrics are served with the certificate of the directory");
            self.files = Some(files);
        }
        Ok(true)
    }

    fn serve_own(&mut self, now: Timestamp) -> Result<(), CertificateError> {
        let serving = self.own.serving.as_ref().map(|pair| pair.made);
        let next = self.own.next.as_ref().map(|(_, next)| *next);
        let pair = match due(serving, next, now, self.lifetime) {
            Due::Nothing => return Ok(()),
            Due::Make => {
                self.own.next = Some((self.make(now)?, Next::Made));
                return Ok(());
            }
            Due::Serve => self.own.next.take().map(|(pair, _)| pair),
            Due::Replace => Some(self.make(now)?),
        };
        if let Some(pair) = pair {
            self.served.swap(pair.key.clone());
            self.own = Own { serving: Some(pair), next: None };
            tracing::info!("metrics are served with a certificate of the operator's own");
        }
        Ok(())
    }

    fn make(&self, now: Timestamp) -> Result<Pair, CertificateError> {
        Pair::make(&self.namespace, &self.domain, now, self.lifetime)
    }

    /// Publishes the authorities of the own pairs. Again at each look: another client may have removed them.
    async fn publish(&mut self, now: Timestamp) {
        let next = self.own.next.as_ref().map(|(pair, _)| pair);
        let mine: Vec<&str> = self.own.serving.iter().chain(next).map(|pair| pair.authority.as_str()).collect();
        if mine.is_empty() {
            return;
        }
        match authority::publish(&self.client, &self.namespace, &mine, now, self.lifetime).await {
            Ok(()) => {
                if let Some((_, next @ Next::Made)) = &mut self.own.next {
                    *next = Next::Published(now);
                }
            }
            // Another process was faster.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {}
            Err(error) => {
                let name = api::names::METRICS_CA;
                self.report(
                    Reason::ApiError,
                    &format!("failed to write ConfigMap {name}: {}", crate::runtime::errors::said(&error)),
                );
            }
        }
    }

    fn report(&mut self, reason: Reason, problem: &str) {
        if self.reported != problem {
            tracing::warn!(reason = reason.as_str(), "the certificate for metrics: {problem}");
            problem.clone_into(&mut self.reported);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_published_before_it_is_served_and_replaced_before_it_ends() {
        let life = Duration::from_hours(24);
        let at = |hours: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1000 + hours);
        for (about, serving, next, now, expected) in [
            ("the first", None, None, 0, Due::Replace),
            ("young", Some(0), None, 7, Due::Nothing),
            ("a third is over", Some(0), None, 8, Due::Make),
            ("the next is not published yet", Some(0), Some(Next::Made), 16, Due::Nothing),
            ("it was published a moment ago", Some(0), Some(Next::Published(at(8))), 9, Due::Nothing),
            ("it was published a third ago", Some(0), Some(Next::Published(at(8))), 16, Due::Serve),
            ("the one that is served is over", Some(0), Some(Next::Made), 24, Due::Replace),
            ("the clock was ahead", Some(9), None, 0, Due::Replace),
            ("the clock was a little ahead", Some(1), None, 0, Due::Nothing),
        ] {
            assert_eq!(due(serving.map(at), next, at(now), life), expected, "{about}");
        }
    }
}
