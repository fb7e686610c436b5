//! Rows of the acceptance test about directories that others have made: what the operator refuses, takes over, or leaves as it is.

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::{
    acts::{Run, evidence},
    host::Kind,
    judge::{self, Outcome, Output, passed},
    world::HostObjects,
};

/// Group of ordinary users.
const USERS: &str = "S-1-5-32-545";
/// Directory of the operator, which the host must not have before the row `others-files`.
const ROOT: &str = r"C:\k";
/// Directory that only this program makes.
const OURS: &str = r"C:\k\acceptance";
/// Commands that make `C:\k` as an ordinary user would.
const OF_USER: [&str; 2] = [r"mkdir C:\k\acceptance", r"icacls.exe C:\k /setowner *S-1-5-32-545"];
/// Commands that give `C:\k` back, and make in it what an ordinary user could have made before: a directory, a junction and a hard link.
const GIVE_BACK: [&str; 5] = [
    r"icacls.exe C:\k\acceptance /grant *S-1-5-32-545:(OI)(CI)M",
    r"icacls.exe C:\k\acceptance /setowner *S-1-5-32-545",
    r"mklink /j C:\k\acceptance-link C:\Users\Public",
    r"mklink /h C:\k\acceptance-hosts C:\Windows\System32\drivers\etc\hosts",
    r"icacls.exe C:\k /setowner *S-1-5-32-544",
];
/// Commands that query the access lists of the directory, and of what the links lead to.
const LISTS: [&str; 3] =
    [r"icacls.exe C:\k\acceptance", r"icacls.exe C:\Users\Public", r"icacls.exe C:\Windows\System32\drivers\etc\hosts"];
/// Commands that remove what the rows have made, and `C:\k` if it then is empty.
const FORGET: [&str; 4] = [
    r"(if exist C:\k\acceptance icacls.exe C:\k /setowner *S-1-5-32-544)",
    r"(if exist C:\k\acceptance-link rmdir C:\k\acceptance-link)",
    r"(if exist C:\k\acceptance-hosts del C:\k\acceptance-hosts)",
    r"(if exist C:\k\acceptance (rmdir C:\k\acceptance & rmdir C:\k))",
];
/// Command that lists what [`FORGET`] has not removed.
const LEFT: &str = r"(if exist C:\k\acceptance* (dir /b C:\k\acceptance*) else echo none)";

impl Run {
    /// Runs commands on the host that must all succeed.
    pub(super) async fn succeed(&self, commands: &[&str]) -> anyhow::Result<()> {
        let outputs = self.host.run(commands).await?;
        let failed = commands.iter().zip(&outputs).find(|(_, output)| output.status != Some(0));
        ensure!(failed.is_none(), "a command failed on the host: {failed:?}");
        Ok(())
    }

    /// Removes what the rows of this module have made on the host.
    pub(crate) async fn forget_directories(&self) -> anyhow::Result<()> {
        if self.kind != Kind::Windows {
            return Ok(());
        }
        self.host.run(&FORGET).await?;
        let left = self.host.run(&[LEFT]).await?;
        ensure!(judge::none_left(&left).is_some(), "the host still has directories of this program: {left:?}");
        Ok(())
    }

    /// Checks that an operation keeps the access list of a directory in `C:\k`. wicd replaces the lists there only when it takes `C:\k` over.
    pub(crate) async fn own_access_list(&self) -> anyhow::Result<String> {
        let kept = async {
            self.succeed(&[r"mkdir C:\k\acceptance", r"icacls.exe C:\k\acceptance /grant *S-1-5-32-545:R"]).await?;
            let changed = self.change(json!({"logs": {"maxSize": "90Mi"}})).await;
            let lists = self.host.run(&LISTS[..1]).await;
            // Later rows need the settings as they were, whatever the result.
            self.change(json!({"logs": {"maxSize": "100Mi"}})).await?;
            changed?;
            evidence(users_may_read, &lists?)
        };
        let kept = kept.await;
        let forgotten = self.forget_directories().await;
        kept.and_then(|evidence| forgotten.map(|()| evidence))
    }

    /// Joins a host whose `C:\k` belongs to users, which is refused, and then a host with files of others in `C:\k`. Removes it again.
    pub(crate) async fn others_files(&self) -> anyhow::Result<String> {
        ensure!(
            !self.before.contains(&ROOT),
            "the host had {ROOT} before the run: remove it, and run this program again"
        );
        let joined = async {
            self.succeed(&OF_USER).await?;
            let before = self.host.run(&LISTS).await?;
            let pem = std::fs::read(&self.args.login.identity).context("cannot read the private key of --identity")?;
            self.world.store_key(pem).await?;
            self.apply().await?;
            let is_refused = |seen: &HostObjects| is_refusal(&seen.says()).then_some(());
            self.world.until_seen("the directory of a user is refused", is_refused).await?;
            self.succeed(&GIVE_BACK).await?;
            self.world.until_seen("the host is a Ready node", HostObjects::follows).await?;
            let after = self.host.run(&LISTS).await?;
            evidence(taken_over, &[before, after].concat())
        };
        let joined = joined.await;
        if joined.is_err() {
            // The operator cannot remove the host while its directory belongs to users.
            self.forget_directories().await?;
        }
        self.world.remove(&self.world.names).await?;
        self.forget_directories().await?;
        let joined = joined?;
        self.host.check_directories(&self.before).await?;
        Ok(joined)
    }
}

/// Reports whether the operator says that it refuses a directory, because it belongs to the group of ordinary users.
fn is_refusal(says: &str) -> bool {
    says.starts_with("DirectoryRefused: ") && says.contains(USERS)
}

/// Judges `icacls` of a directory: users must have the entry that the row has added.
fn users_may_read(outputs: &[Output]) -> Option<Outcome> {
    let [output] = outputs else { return None };
    let list = judge::entries(output, OURS)?;
    list.contains(&(r"BUILTIN\Users", vec!["R"]))
        .then(|| passed(format!("{OURS} has the entry of users that was added")))
}

/// Judges [`LISTS`] before and after a join: the directory is taken over, and what links lead to has the same access list.
fn taken_over(outputs: &[Output]) -> Option<Outcome> {
    let [_, public, hosts, directory, public_after, hosts_after] = outputs else { return None };
    let is_same = public.ok()? == public_after.ok()? && hosts.ok()? == hosts_after.ok()?;
    (is_same && judge::is_administrators_alone(&judge::entries(directory, OURS)?)).then(|| {
        passed(format!(
            "{ROOT} of users was refused; later only SYSTEM and Administrators have access to {OURS}, and what a junction and a hard link lead to was left as it was"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(path: &str, entries: &[&str]) -> Output {
        let entries = entries.join("\n          ");
        let text = format!("{path} {entries}\n\nSuccessfully processed 1 files; Failed processing 0 files");
        Output { status: Some(0), text }
    }

    const OWN: [&str; 2] = [r"NT AUTHORITY\SYSTEM:(I)(OI)(CI)(F)", r"BUILTIN\Administrators:(I)(OI)(CI)(F)"];

    #[test]
    fn a_refusal_names_the_group() {
        for (says, expected) in [
            (r"DirectoryRefused: C:\k belongs to S-1-5-32-545; run takeown", true),
            (r"DirectoryRefused: C:\k belongs to S-1-5-21-1-2-3-1001; run takeown", false),
            ("Unreachable: S-1-5-32-545", false),
        ] {
            assert_eq!(is_refusal(says), expected, "{says}");
        }
    }

    #[test]
    fn the_added_entry_must_be_there() {
        let with = |entry: &str| [list(OURS, &[OWN[0], entry, OWN[1]])];
        assert!(users_may_read(&with(r"BUILTIN\Users:(R)")).is_some());
        for entry in [r"BUILTIN\Users:(I)(R)", r"BUILTIN\Users:(F)", r"BUILTIN\Guests:(R)", "?"] {
            assert_eq!(users_may_read(&with(entry)), None, "{entry}");
        }
    }

    #[test]
    fn a_directory_is_taken_over_and_no_link_is_followed() {
        let users = r"BUILTIN\Users:(OI)(CI)(M)";
        let (public, hosts) = (list(r"C:\Users\Public", &[users]), list("hosts", &[users]));
        let taken = |directory: &[&str], public_after: &Output, hosts_after: &Output| {
            let before = [list(OURS, &[users]), public.clone(), hosts.clone()];
            taken_over(&[&before[..], &[list(OURS, directory), public_after.clone(), hosts_after.clone()]].concat())
        };
        assert!(taken(&OWN, &public, &hosts).is_some());
        let other = list(r"C:\Users\Public", &OWN);
        assert_eq!(taken(&OWN, &other, &hosts), None);
        assert_eq!(taken(&OWN, &public, &other), None);
        assert_eq!(taken(&[OWN[0], OWN[1], users], &public, &hosts), None);
        assert_eq!(taken_over(&[public]), None);
    }
}
