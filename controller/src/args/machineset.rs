//! Arguments of the command that makes a MachineSet.

use std::collections::BTreeMap;

use clap::{Parser, ValueEnum};

/// Arguments of `machineset`.
#[derive(Parser, Clone, Debug)]
pub struct MachineSet {
    /// Name of the MachineSet. On vSphere and Azure at most 9 characters.
    pub name: String,
    /// Platform of the cluster.
    #[arg(long, value_enum)]
    pub platform: MachinePlatform,
    /// Number of Machines.
    #[arg(long, default_value_t = 1)]
    pub replicas: u16,
    /// Number of GPUs of each Machine, for the autoscaler.
    #[arg(long)]
    pub gpus: Option<u16>,
    /// What the platform must know.
    #[command(flatten)]
    pub values: MachineValues,
}

/// What a platform must know of its Machines.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct MachineValues {
    /// Image with Windows Server: the AMI on AWS, the SKU or the resource ID on Azure, the path of the image on GCP, the template on vSphere, the
    /// name of the image on Nutanix.
    #[arg(long)]
    pub image: Option<String>,
    /// Name of the cluster's infrastructure: `.status.infrastructureName` of its `Infrastructure`.
    #[arg(long)]
    pub infrastructure: Option<String>,
    /// Type of the instance on AWS, Azure and GCP.
    #[arg(long)]
    pub instance_type: Option<String>,
    /// Number of processors on vSphere and Nutanix; elsewhere only for the autoscaler.
    #[arg(long)]
    pub cpus: Option<u32>,
    /// Memory in MiB on vSphere and Nutanix; elsewhere only for the autoscaler.
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<u32>,
    /// Region on AWS and GCP, location on Azure.
    #[arg(long)]
    pub region: Option<String>,
    /// Zone on AWS, Azure and GCP.
    #[arg(long)]
    pub zone: Option<String>,
    /// Project on GCP.
    #[arg(long)]
    pub project: Option<String>,
    /// Name of the subnet on AWS, its UUID on Nutanix.
    #[arg(long)]
    pub subnet: Option<String>,
    /// Name of the security group on AWS.
    #[arg(long)]
    pub security_group: Option<String>,
    /// Network on vSphere.
    #[arg(long)]
    pub network: Option<String>,
    /// Datacenter on vSphere.
    #[arg(long)]
    pub datacenter: Option<String>,
    /// Datastore on vSphere.
    #[arg(long)]
    pub datastore: Option<String>,
    /// Folder of virtual machines on vSphere.
    #[arg(long)]
    pub folder: Option<String>,
    /// vCenter server on vSphere.
    #[arg(long)]
    pub server: Option<String>,
    /// UUID of the Prism Element on Nutanix.
    #[arg(long, value_name = "UUID")]
    pub prism_element: Option<String>,
}

impl MachineValues {
    /// Those that are given, by the name of their argument.
    pub fn given(&self) -> BTreeMap<&'static str, String> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let all = [
            ("image", self.image.clone()),
            ("infrastructure", self.infrastructure.clone()),
            ("instance-type", self.instance_type.clone()),
            ("cpus", number(self.cpus)),
            ("memory-mib", number(self.memory_mib)),
            ("region", self.region.clone()),
            ("zone", self.zone.clone()),
            ("project", self.project.clone()),
            ("subnet", self.subnet.clone()),
            ("security-group", self.security_group.clone()),
            ("network", self.network.clone()),
            ("datacenter", self.datacenter.clone()),
            ("datastore", self.datastore.clone()),
            ("folder", self.folder.clone()),
            ("server", self.server.clone()),
            ("prism-element", self.prism_element.clone()),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// A platform of OpenShift.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachinePlatform {
    /// Amazon Web Services.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Google Cloud.
    Gcp,
    /// VMware vSphere.
    Vsphere,
    /// Nutanix.
    Nutanix,
    /// No platform that makes machines.
    None,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_value_has_the_name_of_its_argument() {
        let text = || Some("1".to_owned());
        let all = MachineValues {
            image: text(),
            infrastructure: text(),
            instance_type: text(),
            cpus: Some(1),
            memory_mib: Some(1),
            region: text(),
            zone: text(),
            project: text(),
            subnet: text(),
            security_group: text(),
            network: text(),
            datacenter: text(),
            datastore: text(),
            folder: text(),
            server: text(),
            prism_element: text(),
        };
        let command = MachineSet::command();
        let longs: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        for name in all.given().keys() {
            assert!(longs.contains(name), "{name}");
        }
    }
}
