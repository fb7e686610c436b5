//! Guide to the next steps: commands to copy.

use anyhow::{Context as _, Result};
use testbed::binaries;

use super::world::{POOL, World};

/// Returns the text of the guide.
pub(super) fn text(world: &World) -> Result<String> {
    let kubectl = binaries::control_plane()?.kubectl;
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let hosts: Vec<&str> = world.names().collect();
    let (first, last) = (hosts.first().unwrap_or(&""), hosts.last().unwrap_or(&""));
    Ok(format!(
        "\
In another terminal:
  DEMO={dir}
  export KUBECONFIG=$DEMO/admin.kubeconfig
  export PATH={bin}:{plugin}:$PATH

Look around:
  kubectl get wnp
  kubectl get wi -o wide
  kubectl get nodes --show-labels
  kubectl describe wi {first}
  kubectl get events --sort-by=.metadata.creationTimestamp
  kubectl get csr
  kubectl windows-node-pools status --watch
  kubectl windows-node-pools ui

Cut a host off; its node becomes NotReady after about 30 s. Then let it come back:
  touch $DEMO/off/{last}
  rm $DEMO/off/{last}

Remove the host from the list: the operator drains its node, cleans the host and deletes the node:
  kubectl patch wnp {pool} --type=json \\
    -p '[{{\"op\": \"remove\", \"path\": \"/spec/inventory/hosts/{index}\"}}]'

If the host is off, its removal waits. To abandon it:
  kubectl windows-node-pools abandon {last}

Change a label of all nodes (no rollout):
  kubectl patch wnp {pool} --type=merge \\
    -p '{{\"spec\": {{\"template\": {{\"metadata\": {{\"labels\": {{\"example.com/hall\": \"b\"}}}}}}}}}}'

The operator:
  tail -f $DEMO/{log}
  curl -X PUT -d info,controller=debug http://{admin}/log-level
  curl http://{http}/metrics

Ctrl-C ends everything that runs.",
        dir = world.control_plane.dir().display(),
        bin = kubectl.parent().context("the path of kubectl has no folder")?.display(),
        // The build of the operator puts the plugin beside this program.
        plugin = program.parent().context("the path of this program has no folder")?.display(),
        index = hosts.len().saturating_sub(1),
        pool = POOL,
        log = world.operator.log_path().file_name().unwrap_or_default().display(),
        http = world.operator.address(),
        admin = world.operator.admin_address(),
    ))
}
