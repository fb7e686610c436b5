//! The rows of images that are pulled ahead, and of maintenance: what people do who patch hosts.

use anyhow::{Context as _, bail};

use super::{
    acts::Run,
    host::Kind,
    judge::{self, Outcome},
    world::Seen,
};

/// Reason of the maintenance, which the operator shows.
const REASON: &str = "acceptance";
/// Seconds for which a command on the host waits: less than it may take.
const WAIT: u32 = 150;
/// The path of wicd, which contains its hash.
const SERVICE: &str =
    r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\windows-instance-config-daemon /v ImagePath";

impl Run {
    /// The image of the run with a tag, which a pool requires.
    fn tagged_image(&self) -> anyhow::Result<String> {
        self.image().map(tagged)
    }

    pub(super) async fn pre_pull(&self) -> anyhow::Result<String> {
        let image = self.tagged_image()?;
        *self.images.lock() = vec![image.clone()];
        if let Err(error) = self.apply().await {
            // The rows that follow change the rest.
            self.images.lock().clear();
            return Err(error);
        }
        let has_pulled = |seen: &Seen| seen.has_pulled(&image).then_some(());
        self.world.until_seen("the host has pulled the image", has_pulled).await?;
        if self.kind != Kind::Windows {
            return Ok(format!("the host has {image}"));
        }
        let is_reported = |seen: &Seen| seen.reports_image(&image).then_some(());
        self.world.until_seen("kubelet reports the image", is_reported).await?;
        Ok(format!("kubelet reports {image}, which no pod has used"))
    }

    pub(super) async fn images_pinned(&self) -> anyhow::Result<String> {
        let image = self.tagged_image()?;
        let outputs = self.host.run(&[r"type C:\k\wicd\owned.json"]).await?;
        shown(judge::images_pinned(&image, &outputs))
    }

    pub(super) async fn maintenance(&self) -> anyhow::Result<String> {
        let drained = self.drained().await;
        self.handed_back().await?;
        drained?;
        self.until_back().await?;
        Ok("Drained and cordoned, then verified and uncordoned".to_owned())
    }

    /// Has the node drained.
    async fn drained(&self) -> anyhow::Result<()> {
        self.world.ask_maintenance(Some(REASON)).await?;
        let is_drained = |seen: &Seen| (seen.maintenance() == Some("Drained") && seen.is_cordoned()).then_some(());
        self.world.until_seen("the node is drained for maintenance", is_drained).await
    }

    /// Called whether or not the node was drained, so that the rows that follow have a node.
    async fn handed_back(&self) -> anyhow::Result<()> {
        self.world.ask_maintenance(None).await
    }

    async fn until_back(&self) -> anyhow::Result<()> {
        let is_back =
            |seen: &Seen| seen.follows().filter(|_| seen.maintenance().is_none() && !seen.is_cordoned()).map(drop);
        self.world.until_seen("the node takes pods again", is_back).await
    }

    pub(super) async fn host_maintenance(&self) -> anyhow::Result<String> {
        let found = self.host.run(&[SERVICE]).await?;
        let Some(wicd) = judge::path_of_wicd(&found) else {
            bail!("the service names no wicd.exe: {}", found.first().map_or("", |output| &output.text));
        };
        let outputs = maintenance_commands(&wicd, async |commands| self.host.run(commands).await).await;
        let judged = outputs.and_then(|outputs| shown(judge::host_maintenance(REASON, &outputs)));
        if judged.is_err() {
            // The rows that follow need the node, whether or not the host could be asked to hand it back.
            self.world.withdraw_maintenance().await?;
        }
        let evidence = judged?;
        self.until_back().await?;
        Ok(evidence)
    }

    /// Windows Update leaves a key until the next start of Windows. The kit makes it while the node is drained. A restart before the hand-back
    /// would not be the one that this shows, so that the boot id is read last.
    pub(super) async fn patched_restart(&self) -> anyhow::Result<String> {
        let prepared = async {
            self.drained().await?;
            self.require_restart().await?;
            self.boot_id().await
        };
        let before = prepared.await;
        self.handed_back().await?;
        let before = before?;
        let after = self.until_restarted(&before).await?;
        self.until_back().await?;
        self.forget_restart().await?;
        Ok(format!("boot id {before}, then {after}"))
    }

    async fn require_restart(&self) -> anyhow::Result<()> {
        let query = format!(r#"reg.exe query "HKLM\{}""#, judge::RESTART_REQUIRED);
        if self.host.run(&[&query]).await?.iter().any(|output| output.status == Some(0)) {
            bail!("Windows Update waits for a restart already: restart the host, and run the kit again");
        }
        let command = format!(r#"reg.exe add "HKLM\{}" /v {} /d 1 /f"#, judge::RESTART_REQUIRED, judge::MARK);
        let outputs = self.host.run(&[&command]).await?;
        match &outputs[..] {
            [output] if output.status == Some(0) => Ok(()),
            _ => bail!("the key of Windows Update cannot be made: {outputs:?}"),
        }
    }

    /// Removes the key of [`Self::require_restart`], and never one that Windows made.
    ///
    /// # Errors
    /// When the host cannot be reached, or the key stays.
    pub(super) async fn forget_restart(&self) -> anyhow::Result<()> {
        if self.kind == Kind::Simulated {
            return Ok(());
        }
        let query = format!(r#"reg.exe query "HKLM\{}" /v {}"#, judge::RESTART_REQUIRED, judge::MARK);
        let found = self.host.run(&[&query]).await?;
        match judge::has_mark(&found) {
            Some(true) => {}
            Some(false) => return Ok(()),
            None => bail!("whether the host has a value of this kit cannot be read: {found:?}"),
        }
        let unmark = format!(r#"reg.exe delete "HKLM\{}" /v {} /f"#, judge::RESTART_REQUIRED, judge::MARK);
        let all = format!(r#"reg.exe query "HKLM\{}""#, judge::RESTART_REQUIRED);
        let outputs = self.host.run(&[&unmark, &query, &all]).await?;
        if judge::has_mark(outputs.get(1..2).context("no output")?) != Some(false) {
            bail!("the value in the key of Windows Update cannot be removed: {outputs:?}");
        }
        // What Windows has put into it meanwhile stays.
        if outputs.get(2).is_some_and(judge::is_empty_key) {
            let delete = format!(r#"reg.exe delete "HKLM\{}" /f"#, judge::RESTART_REQUIRED);
            self.host.run(&[&delete]).await?;
        }
        Ok(())
    }
}

/// Runs `begin`, `status`, `end` and `status`. The end is sent whatever becomes of the others, on a connection of its own: a request that stays
/// keeps the node drained.
async fn maintenance_commands(
    wicd: &str,
    run: impl AsyncFn(&[&str]) -> anyhow::Result<Vec<judge::Output>>,
) -> anyhow::Result<Vec<judge::Output>> {
    let begin = format!("{wicd} maintenance begin --reason {REASON} --timeout {WAIT}");
    let (status, end) = (format!("{wicd} maintenance status"), format!("{wicd} maintenance end --wait {WAIT}"));
    let begun = run(&[&begin, &status]).await;
    let mut ended = run(&[&end, &status]).await;
    if ended.is_err() {
        ended = run(&[&end, &status]).await;
    }
    let (mut outputs, ended) = (begun?, ended?);
    outputs.extend(ended);
    Ok(outputs)
}

/// What an outcome shows. An act says by itself where it shows nothing.
fn shown(outcome: Outcome) -> anyhow::Result<String> {
    match outcome {
        Outcome::Passed(evidence) => Ok(evidence),
        Outcome::Failed(why) | Outcome::Skipped(why) => bail!(why),
    }
}

/// An image with the tag that it has if it names none.
fn tagged(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Whether each connection breaks, how often `end` is sent, and whether there is a result.
    #[tokio::test]
    async fn the_end_follows_a_lost_connection() {
        for (breaks, sent, is_good) in [
            ([false, false, false], 1, true),
            ([true, false, false], 1, false),
            ([false, true, false], 2, true),
            ([true, true, true], 2, false),
        ] {
            let (connections, ends) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let run = async |commands: &[&str]| {
                ends.fetch_add(commands.iter().filter(|c| c.contains(" maintenance end ")).count(), Relaxed);
                if breaks[connections.fetch_add(1, Relaxed)] {
                    bail!("the connection is lost");
                }
                Ok(vec![judge::Output::default(); commands.len()])
            };
            let outputs = maintenance_commands("wicd.exe", run).await;
            assert_eq!((ends.into_inner(), outputs.is_ok_and(|o| o.len() == 4)), (sent, is_good), "{breaks:?}");
        }
    }

    #[test]
    fn images_have_tags() {
        for (image, expected) in [
            ("mcr.microsoft.com/windows/servercore:ltsc2022", "mcr.microsoft.com/windows/servercore:ltsc2022"),
            ("registry.example.com:5000/windows", "registry.example.com:5000/windows:latest"),
            ("example.com/windows", "example.com/windows:latest"),
            ("example.com/windows@sha256:0", "example.com/windows@sha256:0"),
        ] {
            assert_eq!(tagged(image), expected);
        }
    }
}
