//! Clusters on which the operator is installed. A cluster takes longer to start than most tests run, so it is used by one test after another.

use std::{
    ops::{Deref, DerefMut},
    sync::Mutex,
    thread,
};

use anyhow::Result;

use crate::{ControlPlane, ControlPlaneOptions, control_plane::Records, deployment, lock::lock};

/// Clusters that no test uses.
static FREE: Mutex<Vec<(ControlPlane, Records)>> = Mutex::new(Vec::new());

/// Control plane for one test, in its initial state. When it is dropped, the next test can use it.
#[derive(Debug)]
pub struct Cluster {
    control_plane: Option<ControlPlane>,
    /// State that is restored for the next test. `None` if the control plane is not reused.
    initial: Option<Records>,
}

impl Cluster {
    /// Returns a control plane with the CRDs and `deploy/base` in force: that of an earlier test, restored to this state, or a new one.
    ///
    /// # Errors
    /// Fails when no control plane can be reused, and none can be started or the operator cannot be installed.
    pub async fn installed() -> Result<Self> {
        loop {
            let free = lock(&FREE).pop();
            let Some((control_plane, initial)) = free else { break };
            // A control plane that cannot be restored is dropped, and ends.
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
