//! Clusters on which the operator is installed. A start takes longer than most tests, so that one is used by test after test.

use std::{
    ops::{Deref, DerefMut},
    sync::Mutex,
    thread,
};

use anyhow::Result;

use crate::{ControlPlane, ControlPlaneOptions, control_plane::Records, deployment, lock::lock};

/// Clusters that no test uses.
static FREE: Mutex<Vec<(ControlPlane, Records)>> = Mutex::new(Vec::new());

/// A control plane for one test, as if it were new. Dropped, it is for the next test.
#[derive(Debug)]
pub struct Cluster {
    control_plane: Option<ControlPlane>,
    /// State to which it goes back. A control plane that is the test's own has none.
    initial: Option<Records>,
}

impl Cluster {
    /// Returns a control plane with `deploy/base` applied and in force: one of an earlier test, brought back to that state, or a new one.
    ///
    /// # Errors
    /// Fails when there is none to be used again, and none can be started or the operator cannot be installed.
    pub async fn installed() -> Result<Self> {
        loop {
            let free = lock(&FREE).pop();
            let Some((control_plane, initial)) = free else { break };
            // One that cannot go back has ended with this.
            if control_plane.go_back_to(&initial).await.is_ok() {
                return Ok(Self { control_plane: Some(control_plane), initial: Some(initial) });
            }
        }
        let control_plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
        deployment::install(&control_plane).await?;
        let initial = control_plane.records().await?;
        Ok(Self { control_plane: Some(control_plane), initial: Some(initial) })
    }
}

impl From<ControlPlane> for Cluster {
    fn from(control_plane: ControlPlane) -> Self {
        Self { control_plane: Some(control_plane), initial: None }
    }
}

impl Deref for Cluster {
    type Target = ControlPlane;

    #[expect(clippy::expect_used, reason = "it is there until it is dropped")]
    fn deref(&self) -> &ControlPlane {
        self.control_plane.as_ref().expect("a cluster has a control plane")
    }
}

impl DerefMut for Cluster {
    #[expect(clippy::expect_used, reason = "it is there until it is dropped")]
    fn deref_mut(&mut self) -> &mut ControlPlane {
        self.control_plane.as_mut().expect("a cluster has a control plane")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let (Some(control_plane), Some(initial)) = (self.control_plane.take(), self.initial.take()) else { return };
        if control_plane.is_as_started() && !thread::panicking() {
            lock(&FREE).push((control_plane, initial));
        }
    }
}
