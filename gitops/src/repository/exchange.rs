//! Git protocol exchange with a server: its references, and the pack of the missing objects.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, Ordering},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

use gix::{
    ObjectId,
    odb::pack,
    progress::Discard,
    protocol::{
        self, Handshake,
        fetch::{self, Arguments, Shallow, Tags, negotiate},
        handshake::Ref,
        ls_refs::RefPrefixes,
        transport::{Protocol, Service, client::blocking_io::Transport},
    },
};

use super::{GitError, link::Link, resolve::RefRequest, store::Store};

/// History depth of the first fetch.
pub(super) const DEPTH: u32 = 50;

/// History depth of a second fetch, which shows whether the new commit descends from a previous one that the first fetch does not reach.
pub(super) const FAR: u32 = 1000;

/// Maximum number of bytes of an object, and maximum memory for one while a pack is read.
const OBJECT: usize = 64 << 20;

/// Interval at which a thread checks for the end of the fetch while a pack is received.
const TICK: Duration = Duration::from_millis(100);

fn agent() -> (&'static str, Option<String>) {
    ("agent", Some(protocol::agent("windows-node-pools")))
}

/// Connection to a server after the handshake.
pub(super) struct GitSession<'a, T> {
    link: &'a Link<'a>,
    transport: T,
    handshake: Handshake,
}

impl<'a, T: Transport> GitSession<'a, T> {
    /// Performs the handshake.
    pub(super) fn begin(link: &'a Link<'a>, mut transport: T) -> Result<Self, GitError> {
        // The transports log in by themselves; no prompt is available.
        let nobody = |_| Err(gix::Error::from_error(std::io::Error::from(std::io::ErrorKind::PermissionDenied)));
        let handshake = protocol::handshake(&mut transport, Service::UploadPack, nobody, Vec::new(), &mut Discard)
            .map_err(|error| explain(link, &error))?;
        Ok(Self { link, transport, handshake })
    }

    /// Returns the hash algorithm of the repository's object ids.
    pub(super) fn hash(&self) -> Result<gix::hash::Kind, GitError> {
        let format = self.handshake.capabilities.capability("object-format").and_then(|format| format.value());
        match format.map(|name| name.to_vec()).as_deref() {
            None | Some(b"sha1") => Ok(gix::hash::Kind::Sha1),
            Some(b"sha256") => Ok(gix::hash::Kind::Sha256),
            Some(_) => Err(self.link.failed("its object ids are neither SHA-1 nor SHA-256")),
        }
    }

    /// Returns the wanted references of the server. The server may add others.
    pub(super) fn references(&mut self, wanted: &RefRequest) -> Result<Vec<Ref>, GitError> {
        if let Some(refs) = self.handshake.refs.take() {
            return Ok(refs);
        }
        let Some(prefix) = wanted.prefix() else { return Ok(Vec::new()) };
        let mut prefixes = RefPrefixes::new();
        prefixes.extend([prefix.into()]);
        let command = protocol::LsRefsCommand::new(Some(prefixes), &self.handshake.capabilities, agent());
        command.invoke_blocking(&mut self.transport, &mut Discard, false).map_err(|error| explain(self.link, &error))
    }

    /// Reports whether the server allows more than one fetch.
    pub(super) fn can_ask_again(&self) -> bool {
        self.handshake.server_protocol_version == Protocol::V2
    }

    /// Reports whether the server can truncate history. From servers without this capability, the whole history is fetched.
    fn can_cut(&self) -> bool {
        let capabilities = &self.handshake.capabilities;
        match self.handshake.server_protocol_version {
            Protocol::V2 => {
                capabilities.capability("fetch").and_then(|fetch| fetch.supports("shallow")).unwrap_or_default()
            }
            Protocol::V0 | Protocol::V1 => capabilities.contains("shallow"),
        }
    }

    /// Fetches an object, with history of a given depth.
    pub(super) fn fetch(&mut self, store: &Store, id: ObjectId, depth: u32) -> Result<(), GitError> {
        let link = self.link;
        link.expect_content();
        let depth = if self.can_cut() { depth } else { 0 };
        let repo = store.open()?;
        let mut ask = Ask { id, haves: store.haves(&repo)? };
        let (interrupt, hash) = (AtomicBool::new(false), repo.object_hash());
        let packs = repo.objects.store_ref().path().join("pack");
        let options = pack::bundle::write::Options {
            thread_limit: Some(1),
            alloc_limit_bytes: Some(OBJECT),
            ..pack::bundle::write::Options::default()
        };
        let bases = repo.objects.clone();
        let shallow_file = repo.shallow_file().map_err(|error| GitError::damaged(&error))?;
        let (handshake, transport) = (&mut self.handshake, &mut self.transport);
        let mut unpacking = false;
        let result = std::thread::scope(|scope| {
            let (done, waits) = mpsc::channel::<()>();
            let (is_over, interrupt) = (link.is_over(), &interrupt);
            scope.spawn(move || {
                while matches!(waits.recv_timeout(TICK), Err(RecvTimeoutError::Timeout)) {
                    interrupt.store(is_over(), Ordering::Relaxed);
                }
            });
            let result = protocol::fetch(
                &mut ask,
                |reader, progress, interrupt| {
                    unpacking = true;
                    let written = pack::Bundle::write_to_directory(
                        reader,
                        Some(&packs),
                        progress,
                        interrupt,
                        Some(bases),
                        hash,
                        options,
                    )?;
                    // The `.keep` file protects a pack from Git's garbage collection, which never runs here.
                    if let Some(keep) = written.keep_path {
                        std::fs::remove_file(keep).map_err(gix::Error::from_error)?;
                    }
                    Ok(true)
                },
                Discard,
                interrupt,
                fetch::Context { handshake, transport, user_agent: agent(), trace_packetlines: false },
                fetch::Options {
                    shallow_file,
                    shallow: &NonZeroU32::new(depth).map_or(Shallow::NoChange, Shallow::DepthAtRemote),
                    tags: Tags::None,
                    reject_shallow_remote: false,
                },
            );
            drop(done);
            result
        });
        result.map(drop).map_err(|error| match explain(link, &error) {
            // The pack may build on stored objects that are missing.
            GitError::Failed { problem, .. } if unpacking => GitError::Damaged { problem },
            error => error,
        })
    }

    /// Ends the exchange. Errors are ignored, as no more requests follow.
    pub(super) fn end(mut self) {
        let _ = protocol::indicate_end_of_interaction(&mut self.transport, false);
    }
}

/// Returns the error that the link recorded. Otherwise, derives one from gix's messages.
fn explain(link: &Link<'_>, error: &gix::Error) -> GitError {
    if let Some(known) = link.failure().or_else(|| link.over()) {
        return known;
    }
    let words = super::error::chain(error.error());
    let all: Vec<String> = error.iter_errors().map(ToString::to_string).collect();
    let said = |what: &str| all.iter().any(|words| words.contains(what));
    // The last text is how gix reports a refusal in the older protocol, where it expects a pack.
    if said("not our ref") || said("unadvertised object") || said("non-side channel line or input was malformed: 69") {
        return GitError::RevisionNotFound {
            what: "such commit, or does not serve it by its ID: correct inventory.git.ref.commit, or set inventory.git.ref.branch or tag"
                .to_owned(),
        };
    }
    if error
        .iter_errors()
        .any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::StorageFull))
    {
        return GitError::Disk(std::io::ErrorKind::StorageFull.into());
    }
    if error.is_resource_exhausted() {
        let what = format!("an object in it is larger than {} MiB", OBJECT >> 20);
        return GitError::RepositoryTooLarge { what };
    }
    link.failed(if all.is_empty() { words } else { all.join(": ") })
}

/// Negotiation that requests one object and reports the local commits in one message: there are too few commits for more
/// rounds.
struct Ask {
    id: ObjectId,
    haves: Vec<ObjectId>,
}

impl fetch::Negotiate for Ask {
    fn mark_complete_and_common_ref(&mut self) -> gix::Result<negotiate::Action> {
        Ok(negotiate::Action::MustNegotiate { remote_ref_target_known: vec![false] })
    }

    fn add_wants(&mut self, arguments: &mut Arguments, _known: &[bool]) -> bool {
        arguments.want(self.id);
        true
    }

    fn one_round(
        &mut self,
        _state: &mut negotiate::one_round::State,
        arguments: &mut Arguments,
        _previous: Option<&fetch::Response>,
    ) -> gix::Result<(negotiate::Round, bool)> {
        for id in &self.haves {
            arguments.have(id);
        }
        let round = negotiate::Round {
            haves_sent: self.haves.len(),
            in_vain: 0,
            haves_to_send: self.haves.len(),
            previous_response_had_at_least_one_in_common: false,
        };
        Ok((round, true))
    }
}
