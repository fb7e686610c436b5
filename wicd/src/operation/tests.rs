//! Fake host for the tests of all verbs, and tests of what the verbs have in common.

use std::collections::BTreeMap;
use std::path::Path;

use api::host::{
    AccountState, Antivirus, Apply, Cleanup, ConfigFile, Defender, Desired, Facts, Reboot, Recipient, RestartCause,
    ServiceState, Stage, Start, operation_dir,
};
use api::payload;
use api::services::{Service, ServicesConfig};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use sha2::{Digest, Sha256};

use super::*;
use crate::fake::{FakeHost, State};
use crate::host::ServiceInfo;

pub(crate) const KUBELET: &str = r"C:\k\kubelet.exe";
pub(crate) const ARCHIVE: &str = "join-1.tar";

/// Kubeconfig for programs that authenticate as the Node, with the fields that wicd reads.
pub(crate) const NODE_KUBECONFIG: &str = r#"{"users": [{"name": "system:node:win-1", "user": {}}]}"#;

/// ID of the test host's cluster.
pub(crate) const CLUSTER: &str = "8c5d9c5e-0000-4000-8000-000000000001";

/// Request from the operator in [`CLUSTER`] for the Node `win-1`.
pub(crate) fn request(operation: &str, epoch: i64, body: Body) -> Request {
    let recipient = Recipient { cluster_id: CLUSTER.into(), node_name: "win-1".into(), machine_id: None };
    let operation = operation.into();
    Request { protocol: PROTOCOL, operation, epoch, recipient, supersedes: None, void_epoch: None, body }
}

/// Fake host, and the CA of an operator that sends requests to it.
pub(crate) struct TestHost {
    pub host: FakeHost,
    pub ca: Issuer<'static, KeyPair>,
}

pub(crate) fn ca_pem(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

pub(crate) fn file(destination: &str, content: &[u8]) -> payload::File {
    payload::File {
        path: destination.rsplit('\\').next().unwrap().into(),
        destination: destination.into(),
        sha256: hex::encode(Sha256::digest(content)),
        size: content.len() as u64,
        ..payload::File::default()
    }
}

pub(crate) fn frame(content: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(content, 1).unwrap()
}

pub(crate) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, *content).unwrap();
    }
    tar.into_inner().unwrap()
}

pub(crate) fn service(name: &str, description: &str, dependencies: &[&str]) -> ServiceInfo {
    ServiceInfo {
        name: name.into(),
        description: description.into(),
        dependencies: dependencies.iter().map(ToString::to_string).collect(),
        state: ServiceState::Running,
        ..ServiceInfo::default()
    }
}

/// Payload of version `v`.
pub(crate) fn payload_files(v: &str) -> Vec<(payload::File, Vec<u8>)> {
    [KUBELET, r"C:\k\containerd\containerd.exe", r"C:\k\cni\win-overlay.exe"]
        .map(|d| (d, format!("{d} {v}").into_bytes()))
        .map(|(d, content)| (file(d, &content), content))
        .into()
}

/// Desired state of the host at version `v`.
pub(crate) fn wanted(v: &str) -> Apply {
    let service = |name: &str, priority| Service {
        name: name.into(),
        path: format!(r"C:\k\{name}.exe --log-file=C:\var\log\{name}\{name}.log"),
        bootstrap: true,
        priority,
        ..Service::default()
    };
    let config = |path: &str, content: &str, secret| ConfigFile { path: path.into(), content: content.into(), secret };
    Apply {
        desired: Desired {
            cluster_id: CLUSTER.into(),
            node_name: "win-1".into(),
            version: v.into(),
            services: ServicesConfig {
                services: vec![service("containerd", 0), service("kubelet", 1)],
                environment_vars: [("HTTP_PROXY".to_string(), "http://proxy".to_string())].into(),
                watched_environment_vars: ["HTTP_PROXY", "NO_PROXY"].map(String::from).into(),
                ..ServicesConfig::default()
            },
            trusted_ca: TRUSTED.with(Clone::clone),
            ..Desired::default()
        },
        files: payload_files(v).into_iter().map(|(f, _)| f).collect(),
        configs: vec![
            config(path::NODE_KUBECONFIG, NODE_KUBECONFIG, false),
            config(r"C:\k\kubelet.conf", &format!("{{}} {v}"), false),
            config(r"C:\k\tls\certs\tls.key", "hunter2", true),
        ],
        certificates: vec![CertificateKind::Kubelet, CertificateKind::Wicd],
        wicd_sha256: exe(v),
    }
}

thread_local! {
    static TRUSTED: String = ca_pem("proxy").0;
}

/// Content hash of wicd.exe at version `v`, whose content is `v`.
pub(crate) fn exe(v: &str) -> String {
    hex::encode(Sha256::digest(v))
}

impl std::ops::Deref for TestHost {
    type Target = FakeHost;

    fn deref(&self) -> &FakeHost {
        &self.host
    }
}

impl TestHost {
    pub(crate) fn new() -> Self {
        Self { host: FakeHost::temporary(), ca: ca_pem("cluster").1 }
    }

    pub(crate) fn run(&self, body: Body) -> Answer {
        run(&self.host, &request("join-1", 1, body))
    }

    /// Returns a host on which the payload of version `v` is staged.
    pub(crate) fn staged(v: &str) -> Self {
        let test_host = Self::new();
        test_host.stage_version(v);
        test_host
    }

    pub(crate) fn clean_up(&self) -> Answer {
        self.run(Body::Cleanup(Cleanup {}))
    }

    /// Adds a running service.
    pub(crate) fn add_service(&self, name: &str, description: &str, dependencies: &[&str]) {
        self.state().services.insert(name.into(), service(name, description, dependencies));
    }

    /// Sends an archive and stages these files from it.
    pub(crate) fn stage(&self, files: &[payload::File], archive: &[u8]) -> Answer {
        self.write(&format!(r"{}\{ARCHIVE}", path::OPERATIONS), archive);
        self.run(Body::Stage(Stage { files: files.to_vec(), archive: ARCHIVE.into() }))
    }

    /// Stages files with this content.
    pub(crate) fn stage_all(&self, contents: &[(payload::File, Vec<u8>)]) {
        let frames: Vec<_> = contents.iter().map(|(file, content)| (file.sha256.as_str(), frame(content))).collect();
        let entries: Vec<_> = frames.iter().map(|(name, frame)| (*name, frame.as_slice())).collect();
        let files: Vec<_> = contents.iter().map(|(file, _)| file.clone()).collect();
        assert_eq!(self.stage(&files, &archive(&entries)).outcome, Outcome::Done);
    }

    /// Stages the payload of version `v`.
    pub(crate) fn stage_version(&self, v: &str) {
        self.stage_all(&payload_files(v));
    }

    pub(crate) fn apply(&self, apply: Apply) -> Answer {
        self.run(Body::Apply(Box::new(apply)))
    }

    /// Issues a certificate for a certificate request, valid for `seconds` from now.
    pub(crate) fn sign(&self, request: &str, seconds: i64) -> String {
        self.issue_backdated(request, Duration::from_mins(1), Duration::from_secs(seconds.unsigned_abs()))
    }

    /// Issues a certificate for a certificate request, issued `age` ago and valid for `left` from now.
    pub(crate) fn issue_backdated(&self, request: &str, age: Duration, left: Duration) -> String {
        let mut params = CertificateSigningRequestParams::from_pem(request).unwrap();
        let now = std::time::SystemTime::now();
        params.params.not_before = (now - age).into();
        params.params.not_after = (now + left).into();
        params.signed_by(&self.ca).unwrap().pem()
    }

    /// Body of the request `start` after this answer of `apply`.
    pub(crate) fn start_body(&self, v: &str, applied: &Answer) -> Start {
        let certificates = applied.requests.iter().map(|(kind, csr)| (*kind, self.sign(csr, 86400))).collect();
        self.write(&api::host::launcher_path(&exe(v)), v.as_bytes());
        Start { certificates, wicd_sha256: exe(v), certificate_seconds: 3600, ..Start::default() }
    }

    /// Makes the host a node at version `v`: stages, applies and starts.
    pub(crate) fn join(&self, v: &str) {
        self.stage_version(v);
        assert_eq!(self.apply_and_start(v, wanted(v)), Outcome::Done);
    }

    /// Applies a desired state whose payload is staged, and starts wicd's service. Returns the outcome of `apply`.
    pub(crate) fn apply_and_start(&self, v: &str, apply: Apply) -> Outcome {
        let applied = self.apply(apply);
        let started = self.run(Body::Start(self.start_body(v, &applied)));
        assert_eq!(started.outcome, Outcome::Done);
        applied.outcome
    }

    /// Returns all files and directories. Directories, and files with random content, have `None`.
    pub(crate) fn tree(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        fn walk(root: &Path, dir: &Path, tree: &mut BTreeMap<String, Option<Vec<u8>>>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                let random = [".key", ".pem", "owned.json", "owned.copy.json"].iter().any(|end| name.ends_with(end))
                    && !name.contains("tls");
                let content = (path.is_file() && !random).then(|| std::fs::read(&path).unwrap());
                if path.is_dir() {
                    walk(root, &path, tree);
                }
                tree.insert(name, content);
            }
        }
        let mut tree = BTreeMap::new();
        let root = self.host.path(r"C:\x").unwrap();
        let root = root.parent().unwrap();
        walk(root, root, &mut tree);
        tree
    }

    /// Returns the state of the host other than files: services, variables and the number of trusted certificates.
    pub(crate) fn rest(&self) -> (BTreeMap<String, ServiceInfo>, BTreeMap<String, String>, usize) {
        let State { services, env, trusted, .. } = self.state().clone();
        (services, env, trusted.len())
    }
}

pub(crate) fn reason(answer: &Answer) -> &str {
    match &answer.outcome {
        Outcome::Failed { reason, .. } => reason,
        Outcome::Done => "Done",
        Outcome::RebootRequired { .. } => "RebootRequired",
    }
}

pub(crate) fn message(answer: &Answer) -> &str {
    match &answer.outcome {
        Outcome::Failed { message, .. } => message,
        Outcome::RebootRequired { why } => why,
        Outcome::Done => "",
    }
}

/// Runs `act` once for every `step`th host call that it makes, each time on a fresh host that fails from that call on, and then checks the host.
pub(crate) fn crash_anywhere<T>(
    arrange: impl Fn() -> (TestHost, T),
    act: impl Fn(&TestHost, &T),
    step: usize,
    mut check: impl FnMut(&TestHost, &T, &str),
) {
    let (straight, arranged) = arrange();
    straight.fail_after(None);
    act(&straight, &arranged);
    let calls = straight.state().calls;
    assert!(calls > 30, "{calls}");
    for n in (0..calls).step_by(step) {
        let (test_host, arranged) = arrange();
        test_host.fail_after(Some(n));
        act(&test_host, &arranged);
        test_host.fail_after(None);
        check(&test_host, &arranged, &format!("after call {n}"));
    }
}

#[test]
fn facts_change_nothing() {
    let test_host = TestHost::new();
    test_host.add_service("containerd", "Container runtime", &[]);
    let files = payload_files("1").into_iter().map(|(f, _)| f).collect::<Vec<_>>();
    test_host.state().unreachable = Some("timed out".into());
    test_host.state().ports_in_use = [10250, 9999].into();
    let asked = Facts {
        files: files.clone(),
        api_server: Some("https://api:6443".into()),
        ports: vec![80, 10250],
        service_accounts: vec!["web".into()],
        credential_plugin: None,
    };
    let answer = test_host.run(Body::Facts(asked));
    let state = answer.state.unwrap();
    assert_eq!((state.api_server.as_deref(), state.ports_in_use), (Some("timed out"), vec![10250]));
    assert_eq!((answer.outcome, test_host.tree().len()), (Outcome::Done, 0));
    assert_eq!(state.missing, files.iter().map(|f| f.sha256.clone()).collect::<Vec<_>>());
    assert_eq!(state.foreign_services, ["containerd"]);
    assert_eq!((state.wicd, state.marker), (ServiceState::Missing, None));
}

#[test]
fn facts_report_pending_restarts_antivirus_and_accounts() {
    let test_host = TestHost::new();
    let asked = || Body::Facts(Facts { service_accounts: vec!["web".into(), "db".into()], ..Facts::default() });
    let state = test_host.run(asked()).state.unwrap();
    assert_eq!((state.antivirus, state.service_accounts.len()), (Antivirus::default(), 0), "the host is in no domain");
    assert!(state.restart_causes.is_empty() && state.container_runtimes.is_empty());

    let filters = vec!["csagent".to_owned()];
    let with = |defender| Antivirus { defender, filters: filters.clone() };
    test_host.state().restart_causes.insert(RestartCause::WindowsUpdate);
    test_host.state().antivirus = with(Defender::Checks);
    test_host.state().machine.domain = Some("corp.example.com".into());
    test_host.state().service_accounts.insert("web".into(), AccountState::Usable);
    test_host.add_service("docker", "Docker Engine", &[]);
    let state = test_host.run(asked()).state.unwrap();
    let accounts = [("web".to_owned(), AccountState::Usable), ("db".to_owned(), AccountState::NotFound)];
    assert_eq!((state.service_accounts, state.antivirus), (accounts.into(), with(Defender::Checks)));
    assert_eq!(
        (state.restart_causes, state.container_runtimes),
        ([RestartCause::WindowsUpdate].into(), vec!["docker".to_owned()])
    );

    test_host.state().excluded.insert(r"C:\k\containerd\containerd.exe".into());
    assert_eq!(test_host.run(asked()).state.unwrap().antivirus, with(Defender::Excludes));
    assert_eq!(
        test_host.run(Body::Reboot(Reboot::default())).state.unwrap().antivirus,
        Antivirus::default(),
        "only facts query the antivirus, because that takes time"
    );
}

#[test]
fn facts_report_the_state_of_a_node() {
    let test_host = TestHost::new();
    test_host.join("1");
    test_host.add_service("kubelet", "OpenShift managed kubelet", &[]);
    let files = payload_files("1").into_iter().map(|(f, _)| f).collect();
    let state = test_host.run(Body::Facts(Facts { files, ..Facts::default() })).state.unwrap();
    assert_eq!(state.marker.unwrap().version, "1");
    assert_eq!(state.missing, Vec::<String>::new());
    assert_eq!((state.wicd, state.wicd_sha256), (ServiceState::Running, Some(exe("1"))));
    assert_eq!(state.services, [("kubelet".to_string(), ServiceState::Running)].into());
    assert_eq!(
        state.certificates.keys().copied().collect::<Vec<_>>(),
        [CertificateKind::Kubelet, CertificateKind::Wicd]
    );
    assert_eq!((state.foreign_services, state.reboot_required), (Vec::new(), None));
}

#[test]
fn another_protocol_and_missing_rights_are_refused() {
    let test_host = TestHost::new();
    let request = |protocol| Request { protocol, ..request("x", 1, Body::Cleanup(Cleanup {})) };
    assert_eq!(reason(&run(&test_host.host, &request(PROTOCOL + 1))), "HostFilesChanged");
    test_host.state().machine.is_admin = false;
    assert_eq!(reason(&run(&test_host.host, &request(PROTOCOL))), "NotAdministrator");
    assert_eq!(test_host.tree().len(), 0);
}

fn serve_body(test_host: &TestHost, id: &str, body: Body) -> Result<Option<Answer>, ServeError> {
    let verb = body.verb();
    let request = request(id, 1, body);
    test_host.write(&api::host::request_path(id, verb), &serde_json::to_vec(&request).unwrap());
    serve(&test_host.host, verb, id)?;
    Ok(files::read_json(&test_host.host, &api::host::answer_path(id, verb)).unwrap())
}

#[test]
fn requests_and_answers_are_files() {
    let test_host = TestHost::new();
    let answer = serve_body(&test_host, "join-1", Body::Facts(Facts::default())).unwrap().unwrap();
    assert_eq!((answer.operation.as_str(), answer.outcome), ("join-1", Outcome::Done));
    assert_eq!(
        files::list(&test_host.host, &operation_dir("join-1")).unwrap(),
        ["facts.answer.json", "facts.request.json"]
    );
    assert!(matches!(serve(&test_host.host, Verb::Facts, r"..\x"), Err(ServeError::OperationId(_))));
    assert!(matches!(serve(&test_host.host, Verb::Facts, "join-2"), Err(ServeError::Request { .. })));
    std::fs::File::create(test_host.path(&api::host::request_path("join-1", Verb::Apply)).unwrap())
        .unwrap()
        .set_len(MAX_REQUEST + 1)
        .unwrap();
    assert!(matches!(serve(&test_host.host, Verb::Apply, "join-1"), Err(ServeError::Request { .. })));
}

/// Only the final answer of a verb collects all facts, because that takes seconds.
#[test]
fn all_facts_are_collected_only_for_the_answer() {
    let test_host = TestHost::new();
    let counted = |body: Body| {
        let verb = body.verb();
        test_host.state().counts.clear();
        let answer = test_host.run(body);
        assert_ne!(reason(&answer), "HostBusy");
        assert_eq!(test_host.state().counts.get("machine"), Some(&1), "{verb:?}");
        answer
    };
    counted(Body::Facts(Facts::default()));
    test_host.stage_version("1");
    counted(Body::Stage(Stage { files: Vec::new(), archive: ARCHIVE.into() }));
    let applied = counted(Body::Apply(Box::new(wanted("1"))));
    require_reboot(&test_host.host, "test").unwrap();
    counted(Body::Start(test_host.start_body("1", &applied)));
    counted(Body::Reboot(Reboot { boot_id: "1".into() }));
    counted(Body::Cleanup(Cleanup {}));
}

/// A restart is detected by the boot ID, so that a repeated request does not restart the host again.
#[test]
fn a_host_is_restarted_once() {
    let test_host = TestHost::new();
    let reboot = || serve_body(&test_host, "boot-1", Body::Reboot(Reboot { boot_id: "1".into() })).unwrap().unwrap();
    // The answer was written while the host still ran.
    assert_eq!(reboot().state.unwrap().machine.boot_id, "1");
    assert_eq!((reboot().outcome, test_host.state().reboots), (Outcome::Done, 1));
}

proptest! {
    #[test]
    fn any_request_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(parse_request(&bytes, Verb::Facts, "x").is_none());
    }

    #[test]
    fn a_request_is_for_one_verb_and_operation(id in "[a-z]{1,3}", wrong in "[a-z]{1,3}") {
        let request = request(&id, 1, Body::Facts(Facts::default()));
        let json = serde_json::to_vec(&request).unwrap();
        prop_assert_eq!(parse_request(&json, Verb::Facts, &wrong).is_some(), wrong == id);
        prop_assert!(parse_request(&json, Verb::Cleanup, &id).is_none());
    }
}

/// An antivirus that holds each file for a second or two must only cause delays, even without exclusions.
#[test]
fn an_antivirus_that_holds_each_new_file_delays_a_join_and_a_removal() {
    use crate::files::tests::{antivirus, held_files};
    let test_host = TestHost::new();
    let run = |test_host: &TestHost, attempts: u32| {
        antivirus(attempts);
        test_host.join("1");
        test_host.join("2");
        // The antivirus holds all files again.
        antivirus(attempts);
        let removed = test_host.run(Body::Cleanup(Cleanup {}));
        assert_eq!(removed.outcome, Outcome::Done, "{removed:?}");
        let held = held_files();
        (test_host.tree().into_keys().collect::<Vec<_>>(), held)
    };
    let (without, _) = run(&TestHost::new(), 0);
    let (with, held) = run(&test_host, 1);
    assert_eq!(with, without);
    assert!(held > 5, "{held}");
}
