//! Guide to the next steps: commands to copy.

use std::{net::SocketAddr, path::PathBuf};

/// Names and addresses that the commands need.
pub(super) struct Places {
    /// Folder of the control plane, with `admin.kubeconfig`, the folder `off` of the switches, and the operator's log.
    pub(super) dir: PathBuf,
    /// Folder of kubectl.
    pub(super) bin: PathBuf,
    /// File name of the operator's log.
    pub(super) log: String,
    /// Address of `/metrics`.
    pub(super) http: SocketAddr,
    /// Address at which the log level is changed.
    pub(super) admin: SocketAddr,
    /// Name of the pool.
    pub(super) pool: &'static str,
    /// Hosts of the pool, in their order.
    pub(super) hosts: Vec<String>,
}

/// Returns the text of the guide.
pub(super) fn text(places: &Places) -> String {
    let Places { dir, bin, log, http, admin, pool, hosts } = places;
    let (first, last) = (hosts.first().map_or("", String::as_str), hosts.last().map_or("", String::as_str));
    let index = hosts.len().saturating_sub(1);
    format!(
        "\
In another terminal:
  DEMO={dir}
  export KUBECONFIG=$DEMO/admin.kubeconfig
  export PATH={bin}:$PATH

Look around:
  kubectl get wnp
  kubectl get wi -o wide
  kubectl get nodes --show-labels
  kubectl describe wi {first}
  kubectl get events --sort-by=.metadata.creationTimestamp
  kubectl get csr

Cut a host off; its node is not Ready after some 30 s. Then let it come back:
  touch $DEMO/off/{last}
  rm $DEMO/off/{last}

Take it out of the list: it is drained, deconfigured and gone.
  kubectl patch wnp {pool} --type=json \\
    -p '[{{\"op\": \"remove\", \"path\": \"/spec/inventory/hosts/{index}\"}}]'

Cut off and taken out, it waits and says so. To give it up as it is:
  kubectl annotate wi {last} {abandon}=true

Change what all nodes look like, without a rollout:
  kubectl patch wnp {pool} --type=merge \\
    -p '{{\"spec\": {{\"template\": {{\"metadata\": {{\"labels\": {{\"example.com/hall\": \"b\"}}}}}}}}}}'

The operator:
  tail -f $DEMO/{log}
  curl -X PUT -d info,controller=debug http://{admin}/log-level
  curl http://{http}/metrics

Ctrl-C ends everything and leaves nothing behind.",
        dir = dir.display(),
        bin = bin.display(),
        abandon = api::names::key::ABANDON,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_name_what_there_is() {
        let text = text(&Places {
            dir: "/run/demo".into(),
            bin: "/cache/bin".into(),
            log: "operator-0.log".into(),
            http: ([127, 0, 0, 1], 1).into(),
            admin: ([127, 0, 0, 1], 2).into(),
            pool: "demo",
            hosts: vec!["wine-1".into(), "sim-1".into()],
        });
        for expected in [
            "DEMO=/run/demo\n",
            "kubectl describe wi wine-1\n",
            "touch $DEMO/off/sim-1\n",
            r#"-p '[{"op": "remove", "path": "/spec/inventory/hosts/1"}]'"#,
            "http://127.0.0.1:2/log-level\n",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }
}
