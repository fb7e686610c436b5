//! Replaces the key that a host accepts with the first key of its list: adds the new key next to the old one, logs in with the new key alone, and
//! only then removes the old one. Changes only lines of the operator's own keys. A rotation can be interrupted at any point: the host accepts at
//! least one of the keys at any time.
//!
//! User data of another operator replaces all keys with its own at each start of the machine. Such a host keeps its key, because its next start
//! would otherwise lock the operator out.

use std::sync::Arc;

use api::{Grant, KeyRotation, Step, host::Verb};

use kube::runtime::controller::Action;

use super::{error::StepError, identity::prove, login, scope::Scope};
use crate::{cluster::secrets::Key, runtime::events::EventReason};
use remote::{
    RemoteError, Session,
    ssh::{Connection, HostKeyCheck, SshError, Target},
};
use wnp_core::operation::{
    authorized_keys::{Old, PublicKey, edit, holds},
    identity::Purpose,
};

/// File with the keys of administrators, in the default configuration of the Windows SSH server.
const ADMINISTRATORS: &str = r"C:\ProgramData\ssh\administrators_authorized_keys";
/// File with the keys of other users, in the user's profile.
const PROFILE: &str = r".ssh\authorized_keys";
/// File that this operator's user data (`host.ps1`) leaves on a machine after it has written the key there, which it does only once.
const USER_DATA_RECORD: &str = r"C:\ProgramData\ssh\windows-node-pools-machine.txt";
/// Maximum size in bytes of a file with keys. Real files are far smaller.
const MAX_FILE: usize = 1 << 20;

/// Performs the whole rotation, which takes seconds. Steps that an earlier attempt has completed are skipped.
pub(super) async fn run(scope: &mut Scope, grant: &Grant) -> Result<Action, StepError> {
    scope.start_operation(grant, Step::Connect);
    let host = scope.instance.spec.host.clone();
    let Some(reference) = host.private_keys.first() else { return Ok(done(scope)) };
    let what = scope.logging_in();
    scope.enter_step(Step::Connect, &what).await?;
    let new = scope.cx.hosts.secrets.key(reference).await?;
    let (keys, _) = scope.cx.hosts.secrets.keys(&host.private_keys).await?;
    let target = login::login(&scope.cx, &scope.instance, &scope.pool).await?;
    let mut session = login::open(scope, &grant.id, &target, &what).await?;
    session.prepare().await?;
    let state = session.look(&[]).await?;
    prove(scope, &mut session, &state, Purpose::Keep)?;
    session.tidy(&[Verb::Facts]).await?;
    scope.record_identity(session.connection());
    let hash = |key: &Key| key.identity.public_key_hash();
    let taken = scope.status.public_key_hash.clone();
    let is_new = taken.as_ref() == Some(&hash(&new));
    let retiring = scope.status.key_rotation.as_ref().and_then(|k| k.retiring_key_hash.clone());
    let old = if is_new { retiring } else { taken };
    let Some(old) = keys.iter().find(|k| Some(hash(k)) == old && hash(k) != hash(&new)).cloned() else {
        // The host has no other key to replace, or the old key is no longer in the list, so that the operator must not remove it.
        session.close().await;
        return Ok(done(scope));
    };
    if let Some(machine) = machine(scope)
        && read(session.connection(), USER_DATA_RECORD).await?.trim().is_empty()
    {
        session.close().await;
        return Err(StepError::KeyOfUserData { machine, key: old.identity.fingerprint() });
    }
    let change = Change::new(&new, &old);
    let files = files(session.connection()).await?;
    if !is_new {
        session = add(scope, session, target, &change, &files, &grant.id).await?;
    }
    retire(scope, &session, &change, &files).await?;
    session.close().await;
    Ok(done(scope))
}

/// Returns the Machine of the host as `<namespace>/<name>`, if it has one.
fn machine(scope: &Scope) -> Option<String> {
    scope.instance.spec.origin.as_ref().and_then(|origin| origin.machine.clone())
}

/// New key, and the old key that it replaces.
struct Change {
    new: Arc<Key>,
    old: Arc<Key>,
    new_line: PublicKey,
    old_line: PublicKey,
}

impl Change {
    fn new(new: &Arc<Key>, old: &Arc<Key>) -> Self {
        let line = |key: &Key| {
            let (type_, base64) = key.identity.public_key();
            PublicKey::new(type_, base64)
        };
        Self { new_line: line(new), old_line: line(old), new: new.clone(), old: old.clone() }
    }
}

/// Adds the new key next to the old one, and returns a connection that was made with the new key.
async fn add(
    scope: &mut Scope,
    session: Session,
    target: Target,
    change: &Change,
    files: &[String],
    operation: &str,
) -> Result<Session, StepError> {
    let (new, old) = (&change.new.identity, &change.old.identity);
    // The key to remove is recorded before the new key is added.
    let rotation = scope.status.record().key_rotation.get_or_insert_default();
    rotation.retiring_key_hash = Some(old.public_key_hash());
    let what = format!("adding the key {} next to the key {}", new.fingerprint(), old.fingerprint());
    scope.enter_step(Step::AddKey, &what).await?;
    let connection = session.connection();
    let (mut places, mut problem) = (Vec::new(), None);
    for file in files {
        let text = match read(connection, file).await {
            Ok(text) => text,
            // The other file may be the relevant one.
            Err(error) => {
                problem = problem.or(Some(error));
                continue;
            }
        };
        if !holds(&text, &change.old_line) {
            continue;
        }
        places.push(file.as_str());
        if let Some(both) = edit(&text, &change.new_line, &change.old_line, Old::Stays) {
            connection.rewrite(file, &bytes(&text), &bytes(&both)).await?;
            let note = format!("the key {} ({}) was added to {file}", new.fingerprint(), new.name());
            scope.say(EventReason::KeyAdded, Step::AddKey.as_str(), &note);
        }
    }
    if places.is_empty() {
        // No key was added, so none has to be removed.
        rotation_over(scope);
        let (key, files) = (old.fingerprint(), files.join(", "));
        return Err(problem.map_or(StepError::KeyLineNotFound { key, files }, StepError::from));
    }
    let places = places.join(", ");
    let check = HostKeyCheck::Pinned(connection.host_key().clone());
    // Closed first, because the host or the limit of SSH connections may allow only one connection at a time.
    session.close().await;
    let what = format!("logging in with the key {} alone", new.fingerprint());
    scope.enter_step(Step::VerifyKey, &what).await?;
    let alone = Target { keys: vec![change.new.identity.clone()], host_key: check, ..target };
    let session = login::open(scope, operation, &alone, &what).await.map_err(|error| match error {
        StepError::Remote(RemoteError::Ssh(SshError::AuthenticationFailed { .. })) => {
            StepError::KeyNotTaken { key: new.fingerprint(), files: places }
        }
        error => error,
    })?;
    scope.record_identity(session.connection());
    Ok(session)
}

/// Removes the old key. `session` was opened with the new one.
async fn retire(scope: &mut Scope, session: &Session, change: &Change, files: &[String]) -> Result<(), StepError> {
    let old = &change.old.identity;
    scope.enter_step(Step::RetireKey, &format!("removing the key {}", old.fingerprint())).await?;
    let connection = session.connection();
    let mut problem = None;
    for file in files {
        let text = match read(connection, file).await {
            Ok(text) => text,
            Err(error) => {
                problem = Some(error);
                continue;
            }
        };
        if let Some(last) = edit(&text, &change.new_line, &change.old_line, Old::Goes) {
            connection.rewrite(file, &bytes(&text), &bytes(&last)).await?;
            let note = format!("the key {} ({}) was removed from {file}", old.fingerprint(), old.name());
            scope.say(EventReason::KeyRetired, Step::RetireKey.as_str(), &note);
        }
    }
    // A file that cannot be read may still have the old key.
    problem.map_or(Ok(()), |error| Err(StepError::from(error)))
}

fn done(scope: &mut Scope) -> Action {
    scope.status.record().key_rotation = None;
    scope.end_operation();
    Action::await_change()
}

/// Records that no key has to be removed.
fn rotation_over(scope: &mut Scope) {
    if let Some(rotation) = &mut scope.status.record().key_rotation {
        rotation.retiring_key_hash = None;
    }
}

/// Records a failed rotation, and returns the wait until the next attempt.
pub(super) async fn failed(scope: &mut Scope, error: &StepError) -> Result<std::time::Duration, StepError> {
    let before = scope.status.key_rotation.clone().unwrap_or_default();
    let failed = scope.fail_side_operation(before.failures.as_ref(), error, EventReason::KeyRotationFailed);
    let (failures, wait) = failed.await;
    scope.status.record().key_rotation = Some(KeyRotation { failures: Some(failures), ..before });
    scope.save().await?;
    Ok(wait)
}

/// Returns the files in which the SSH server may look for the keys of the user.
async fn files(connection: &Connection) -> Result<Vec<String>, StepError> {
    let profile = connection.home().await?.map(|home| format!(r"{}\{PROFILE}", home.trim_end_matches('\\')));
    Ok([ADMINISTRATORS.to_owned()].into_iter().chain(profile).collect())
}

/// Reads a file as text with one character per byte, so that comments in any encoding are preserved. A missing file is empty.
async fn read(connection: &Connection, file: &str) -> Result<String, SshError> {
    let read = connection.read(file, MAX_FILE).await?;
    Ok(read.unwrap_or_default().into_iter().map(char::from).collect())
}

/// Returns the bytes of a text from [`read`].
fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_conversion_to_text() {
        let all: Vec<u8> = (0..=255).collect();
        let text: String = all.iter().copied().map(char::from).collect();
        assert_eq!(bytes(&text), all);
    }
}
