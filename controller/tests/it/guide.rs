//! Pages of the guide, whose commands tests run unchanged. Above each such block is the mark `<!-- run: FILE -->`, which
//! `cargo xtask docs --check` requires.

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::ControlPlane;

use crate::{
    fleet::{LIMIT, World},
    transcripts::root,
};

/// Page of the guide, and a folder in which its commands run.
pub(crate) struct Guide {
    text: String,
    mark: String,
    /// Folder in which the commands run, with the programs that they name.
    folder: tempfile::TempDir,
}

impl Guide {
    /// Opens a page, for a test with this name.
    pub(crate) fn open(control_plane: &ControlPlane, page: &str, test: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        symlink(control_plane.kubectl_program(), folder.path().join("kubectl"))?;
        symlink(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"), folder.path().join(controller::client::PROGRAM))?;
        let text = std::fs::read_to_string(root().join("docs/guide").join(page))?;
        Ok(Self { text, mark: format!("<!-- run: {test} -->"), folder })
    }

    /// Returns the folder in which the commands run.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the blocks of a language directly below a heading; of shell commands, only those with the mark of the test.
    pub(crate) fn blocks(&self, heading: &str, language: &str) -> Vec<String> {
        let (mut blocks, mut is_here, mut before) = (Vec::new(), false, "");
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            if line.starts_with('#') {
                is_here = line == heading;
            } else if let Some(fence) = line.trim_start().strip_prefix("```") {
                let block: Vec<&str> =
                    lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
                if is_here && fence == language && (language != "sh" || before.trim() == self.mark) {
                    blocks.push(block.join("\n") + "\n");
                }
            }
            before = line;
        }
        blocks
    }

    /// Returns the first block of a language below a heading.
    pub(crate) fn block(&self, heading: &str, language: &str) -> Result<String> {
        let first = self.blocks(heading, language).into_iter().next();
        first.with_context(|| format!("no {language} block of this test below {heading:?}"))
    }

    /// Runs the test's commands below a heading, as a user does who copies them, and returns their standard output.
    pub(crate) async fn run(&self, world: &World, heading: &str) -> Result<String> {
        let blocks = self.blocks(heading, "sh");
        ensure!(!blocks.is_empty(), "no commands of this test below {heading:?}");
        let mut printed = String::new();
        for block in blocks {
            printed += &self.run_block(world, &block).await.with_context(|| heading.to_owned())?;
        }
        Ok(printed)
    }

    /// Runs the commands of one block, and returns their standard output. Fails if a command fails.
    pub(crate) async fn run_block(&self, world: &World, block: &str) -> Result<String> {
        let output = self.output(world, block).await?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{out}{err}");
        Ok(out.into_owned())
    }

    /// Runs a shell script, and returns its output.
    pub(crate) async fn output(&self, world: &World, script: &str) -> Result<Output> {
        let path = format!("{}:/usr/bin:/bin", self.folder().display());
        let command = tokio::process::Command::new("/bin/sh")
            .args(["-ec", script])
            .current_dir(self.folder())
            .env("PATH", path)
            .env("HOME", self.folder())
            .env("KUBECONFIG", world.control_plane.kubeconfig())
            // In the image, the payload and `wicd.exe` are at the default paths.
            .env("PAYLOAD_DIR", &world.options.payload)
            .env("WICD_EXE", &world.options.wicd)
            .stdin(Stdio::null())
            .output();
        match tokio::time::timeout(LIMIT, command).await {
            Ok(output) => Ok(output?),
            Err(_) => bail!("these commands did not end:\n{script}\n{}\n{}", world.show().await, world.operator.log()),
        }
    }
}
