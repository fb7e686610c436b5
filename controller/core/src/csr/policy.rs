//! Rules for the verdict on a certificate request.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use api::{Reason, host::MAX_WICD_CERTIFICATE_LIFE};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};

use super::{
    Claim, Fault, Kind, quoted,
    request::{AlternativeName, ExtendedUsage, Request},
};

/// Maximum certificate lifetime for the legacy operator's daemon. The daemon requests exactly this lifetime.
const MAX_LEGACY_LIFETIME: Duration = Duration::from_hours(1);
/// Group of all users of bootstrap tokens.
const BOOTSTRAP_GROUP: &str = "system:bootstrappers";
/// Prefix of the user name of a bootstrap token, before the id of the token.
const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";
/// User with which a new OpenShift node bootstraps.
const OPENSHIFT_BOOTSTRAPPER: &str = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper";
const AUTHENTICATED: &str = "system:authenticated";

/// Assessment of a request, independent of its status and of other requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Assessment {
    NotOurs,
    Wrong(Fault),
    /// Request that cannot be judged yet, or only by a user.
    Open {
        message: String,
        /// Name of the requesting Node, if a user may approve the request meanwhile.
        node: Option<String>,
    },
    Right {
        kind: Kind,
        node: String,
    },
}

/// Reports whether a client has approved or denied the request, or a signer has finished with it.
pub fn is_decided(csr: &CertificateSigningRequest) -> bool {
    let Some(status) = &csr.status else { return false };
    let condition =
        status.conditions.iter().flatten().any(|c| ["Approved", "Denied", "Failed"].contains(&c.type_.as_str()));
    condition || status.certificate.is_some()
}

/// Request to assess, with its circumstances.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub spec: &'a CertificateSigningRequestSpec,
    /// Parsed `spec.request`.
    pub request: &'a Request,
    /// Lookup of the claim of a node name.
    pub claims: &'a dyn Fn(&str) -> Option<Claim>,
    /// User name of the operator.
    pub operator_user: &'a str,
}

impl Asked<'_> {
    fn user(&self) -> &str {
        self.spec.username.as_deref().unwrap_or_default()
    }

    fn is_in_group(&self, wanted: &str) -> bool {
        self.spec.groups.iter().flatten().any(|group| group == wanted)
    }
}

pub(super) fn assess(asked: Asked<'_>) -> Assessment {
    if let Some(assessment) = renewal(asked) {
        return assessment;
    }
    // Invalid requests that concern a Node without an instance are left to WMCO or a user.
    let of_unclaimed = Cell::new(false);
    let claimed = |node: &str| {
        let found = (asked.claims)(node)?;
        of_unclaimed.set(of_unclaimed.get() | found.unclaimed);
        (!found.unclaimed).then_some(found)
    };
    match assess_claimed(Asked { claims: &claimed, ..asked }) {
        Assessment::Wrong(_) if of_unclaimed.get() => Assessment::NotOurs,
        assessment => assessment,
    }
}

/// Assesses a renewal that a Node requests with its own user while its host is not proven. Returns `None` if the request is not such a renewal, or if
/// it is invalid and the host has an instance: the general rules then apply.
fn renewal(asked: Asked<'_>) -> Option<Assessment> {
    let kind = Kind::of_signer(&asked.spec.signer_name)?;
    let node = asked.user().strip_prefix(kind.user_prefix())?;
    let claim = (asked.claims)(node).filter(|claim| claim.renews && claim.node_name == node)?;
    let open = |message: String| Assessment::Open { message, node: Some(node.to_owned()) };
    match check(asked) {
        Ok((kind, of)) if of.node_name == node => Some(match unproven_name(asked.request, &of) {
            None => Assessment::Right { kind, node: of.node_name },
            Some(name) => open(format!(
                "{name} is not proven to belong to Node {node}: approve the request if the name or address belongs to the host"
            )),
        }),
        // No pool shows a command that approves an invalid request.
        Err(fault) if claim.unclaimed => Some(Assessment::Open {
            message: format!(
                "the operator leaves the request to you or to another approver, because Node {node} has no WindowsInstance yet, and {}. Approve it only if you know why the node asks for this; otherwise deny it, and check the host",
                fault.message
            ),
            node: None,
        }),
        _ => None,
    }
}

/// Assesses a request for a host that has an instance.
fn assess_claimed(asked: Asked<'_>) -> Assessment {
    if !is_ours(asked) || is_bootstrap_of_unproven(asked) {
        return Assessment::NotOurs;
    }
    match check(asked) {
        Ok((_, claim)) if !claim.proven => {
            let node = claim.node_name;
            let message = format!(
                "host {node} gets a certificate after its identity is verified over SSH: check that the operator can log in (conditions of WindowsInstance {node})"
            );
            Assessment::Open { message, node: None }
        }
        Ok((kind, claim)) => match unproven_name(asked.request, &claim) {
            Some(name) => {
                let node = &claim.node_name;
                let message = format!(
                    "{name} is not proven to belong to node {node}: approve the request if the name or address belongs to the host or, if it is an IP address, list the host under it"
                );
                Assessment::Open { message, node: Some(claim.node_name) }
            }
            None => Assessment::Right { kind, node: claim.node_name },
        },
        Err(fault) => Assessment::Wrong(fault),
    }
}

/// Returns the names of the hosts that the verdict depends on. `request` is the parsed `spec.request`.
pub fn hosts_of(
    spec: &CertificateSigningRequestSpec,
    request: &Request,
    claims: &dyn Fn(&str) -> Option<Claim>,
    operator_user: &str,
) -> BTreeSet<String> {
    let hosts = RefCell::new(BTreeSet::new());
    let recording = |node: &str| {
        let found = claims(node);
        if found.is_some() {
            hosts.borrow_mut().insert(node.to_owned());
        }
        found
    };
    assess(Asked { spec, request, claims: &recording, operator_user });
    hosts.into_inner()
}

/// Reports whether a request claims to come from a host, rightly or not. Look-alikes (another case, text after the name) count as claims.
fn is_ours(asked: Asked<'_>) -> bool {
    let kubelet = Kind::KubeletClient.user_prefix();
    let wicd = Kind::WicdClient.user_prefix();
    let claimed = |name: &str| {
        let name = name.to_ascii_lowercase();
        let host: &str =
            name.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.')).next().unwrap_or("");
        !host.is_empty() && (asked.claims)(host).is_some()
    };
    let signed = Kind::of_signer(&asked.spec.signer_name);
    let to_kubelet_signer = matches!(signed, Some(Kind::KubeletClient | Kind::KubeletServing));

    asked.user().starts_with(wicd)
        || (to_kubelet_signer && asked.user().strip_prefix(kubelet).is_some_and(claimed))
        || asked.request.organisations.iter().any(|o| o.eq_ignore_ascii_case(Kind::WicdClient.organisation()))
        || asked.request.common_names.iter().any(|cn| {
            let cn = cn.to_ascii_lowercase();
            cn.starts_with(wicd) || cn.strip_prefix(kubelet).is_some_and(claimed)
        })
}

/// Reports whether a bootstrap user requests a certificate for a host that is neither proven nor joined. The requester may be another machine with
/// that name, for which the issuer of the bootstrap token has an approver.
fn is_bootstrap_of_unproven(asked: Asked<'_>) -> bool {
    let [name] = asked.request.common_names.as_slice() else { return false };
    let claim = name.strip_prefix(Kind::KubeletClient.user_prefix()).and_then(asked.claims);
    let has_token = asked.user().starts_with(BOOTSTRAP_USER_PREFIX) && asked.is_in_group(BOOTSTRAP_GROUP);
    (has_token || asked.user() == OPENSHIFT_BOOTSTRAPPER) && claim.is_some_and(|claim| !claim.proven && !claim.joined)
}

/// Checks the rules that a valid request never breaks, and returns the kind and the claim, or the first fault. Does not check that the host is
/// proven, or that each name is.
fn check(asked: Asked<'_>) -> Result<(Kind, Claim), Fault> {
    let Asked { spec, request, claims, .. } = asked;
    if let Some(fault) = &request.fault {
        return Err(fault.clone());
    }
    let unknown = |message: String| Fault { reason: Reason::UnknownHost, message };
    let kind = Kind::of_signer(&spec.signer_name).ok_or_else(|| {
        let signer = quoted(&spec.signer_name);
        Fault::denied(format!("signer {signer} does not issue certificates for Windows hosts"))
    })?;
    let node = check_subject(kind, request)?;
    let claim = claims(node).filter(|claim| claim.node_name == node).ok_or_else(|| {
        unknown(format!("no pool has a host for node {}, or the Node of that name is not proven to belong to the host: add the host to a WindowsNodePool, or correct its name there", quoted(node)))
    })?;
    check_requester(kind, asked, &claim)?;
    check_usages(kind, spec, request)?;
    check_names(kind, request, &claim)?;
    check_lifetime(kind, spec, &claim)?;
    if claim.ended {
        let node = quoted(node);
        return Err(unknown(format!(
            "host {node} is being removed, and its deconfiguration has begun: it needs no certificate"
        )));
    }
    Ok((kind, claim))
}

/// Returns the node that the subject names, if the subject has exactly the form of `kind`.
fn check_subject(kind: Kind, request: &Request) -> Result<&str, Fault> {
    let prefix = kind.user_prefix();
    let [common_name] = request.common_names.as_slice() else {
        let count = request.common_names.len();
        return Err(Fault::denied(format!("the subject must have one common name and has {count}")));
    };
    let node = common_name.strip_prefix(prefix).filter(|node| !node.is_empty()).ok_or_else(|| {
        let (found, signer) = (quoted(common_name), kind.signer_name());
        Fault::denied(format!("common name {found} must be {prefix}<node> for signer {signer}"))
    })?;
    if request.organisations != [kind.organisation()] {
        let found = quoted(&request.organisations.join(", "));
        let wanted = kind.organisation();
        return Err(Fault::denied(format!("the organisations {found} in the subject must be exactly {wanted}")));
    }
    Ok(node)
}

fn check_requester(kind: Kind, asked: Asked<'_>, claim: &Claim) -> Result<(), Fault> {
    let (user, node) = (asked.user(), &claim.node_name);
    if user.strip_prefix(kind.user_prefix()) == Some(node) {
        let groups = [kind.organisation(), AUTHENTICATED];
        return match groups.into_iter().find(|group| !asked.is_in_group(group)) {
            Some(group) => Err(Fault::denied(format!("requester {} is not in group {group}", quoted(user)))),
            None => Ok(()),
        };
    }
    if kind != Kind::KubeletServing && !asked.operator_user.is_empty() && user == asked.operator_user {
        return Ok(());
    }
    if kind == Kind::WicdClient && claim.legacy_daemon.as_deref() == Some(user) {
        return Ok(());
    }
    let (found, what) = (quoted(user), kind.as_str());
    Err(Fault::denied(format!("requester {found} may not request the {what} certificate of node {node}")))
}

/// Checks that the usages are `digital signature` and the kind's purpose, with or without `key encipherment`, and that the extensions agree with
/// them.
fn check_usages(kind: Kind, spec: &CertificateSigningRequestSpec, request: &Request) -> Result<(), Fault> {
    let purpose = kind.purpose();
    let wrong = |message: String| Err(Fault::denied(message));
    let mut usages: BTreeSet<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    usages.remove("key encipherment");
    if usages != BTreeSet::from(["digital signature", purpose]) {
        return wrong(format!("the usages must be digital signature, {purpose} and, if wanted, key encipherment"));
    }
    if request.excess_key_usage {
        return wrong("the key usage extension asks for more than digital signature and key encipherment".into());
    }
    let wanted = if kind == Kind::KubeletServing { ExtendedUsage::ServerAuth } else { ExtendedUsage::ClientAuth };
    if request.extended_key_usage.is_some_and(|found| found != wanted) {
        return wrong(format!("the extended key usage extension must be {purpose} alone"));
    }
    Ok(())
}

fn check_names(kind: Kind, request: &Request, claim: &Claim) -> Result<(), Fault> {
    let wrong = |message: String| Err(Fault::denied(message));
    let names = match (&request.alternative_names, kind) {
        (None, Kind::KubeletClient | Kind::WicdClient) => return Ok(()),
        (Some(_), Kind::KubeletClient | Kind::WicdClient) => {
            return wrong("a client certificate must not have subject alternative names".into());
        }
        (None, Kind::KubeletServing) => &Vec::new(),
        (Some(names), Kind::KubeletServing) => names,
    };
    if names.is_empty() {
        return wrong("a serving certificate needs at least one subject alternative name".into());
    }
    for name in names {
        let foreign = match name {
            AlternativeName::Other(what) => return wrong(format!("a serving certificate may not name {what}")),
            AlternativeName::Dns(_) | AlternativeName::Ip(_) if !claim.proven => continue,
            AlternativeName::Dns(dns) if is_one_of(dns, [&claim.dns_names, &claim.reported_names]) => continue,
            AlternativeName::Ip(ip) if is_one_of(ip, [&claim.addresses, &claim.reported_addresses]) => continue,
            AlternativeName::Dns(dns) => format!("DNS name {}", quoted(dns)),
            AlternativeName::Ip(ip) => format!("IP address {ip}"),
        };
        return Err(Fault::denied(format!("{foreign} is not proven to belong to node {}", claim.node_name)));
    }
    Ok(())
}

fn is_one_of<T: PartialEq>(name: &T, lists: [&Vec<T>; 2]) -> bool {
    lists.iter().any(|list| list.contains(name))
}

/// Returns the first name in the request that is not proven to belong to the host.
fn unproven_name(request: &Request, claim: &Claim) -> Option<String> {
    request.alternative_names.iter().flatten().find_map(|name| match name {
        AlternativeName::Dns(dns) if !claim.dns_names.contains(dns) => Some(format!("DNS name {}", quoted(dns))),
        AlternativeName::Ip(ip) if !claim.addresses.contains(ip) => Some(format!("IP address {ip}")),
        _ => None,
    })
}

fn check_lifetime(kind: Kind, spec: &CertificateSigningRequestSpec, claim: &Claim) -> Result<(), Fault> {
    let seconds = spec.expiration_seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0));
    let is_legacy = claim.legacy_daemon.is_some() && claim.legacy_daemon == spec.username;
    let most = if is_legacy { MAX_LEGACY_LIFETIME } else { MAX_WICD_CERTIFICATE_LIFE }.as_secs();
    // A request for a wicd certificate must set a lifetime, because the signer's default is one year.
    if kind == Kind::WicdClient && seconds.is_none_or(|seconds| seconds > most) {
        return Err(Fault::denied(format!("spec.expirationSeconds must be set, and must be at most {most} seconds")));
    }
    Ok(())
}
