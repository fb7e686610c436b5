//! Manifests of each platform, and what is refused.

use std::{env, fs, path::Path};

use clap::Parser as _;
use serde_json::json;

use super::*;
use crate::fake_api::FakeApi;

fn of(args: &str, cluster: Option<&Cluster>) -> anyhow::Result<String> {
    let args = MachineSet::try_parse_from(["machineset"].into_iter().chain(args.split(' ')))?;
    text(&args, cluster)
}

/// Every value that the platform asks for.
const COMPLETE: [(&str, &str); 5] = [
    (
        "aws",
        "win --platform aws --infrastructure ocp-7x2kq --image ami-0a1 --instance-type m5a.large --region us-east-1 --zone us-east-1a --subnet \
         ocp-7x2kq-subnet-private-us-east-1a --security-group ocp-7x2kq-node --cpus 2 --memory-mib 8192 --replicas 0",
    ),
    (
        "azure",
        "winworker --platform azure --infrastructure ocp-7x2kq --image 2022-datacenter --instance-type Standard_D2s_v3 --region centralus --zone 1",
    ),
    (
        "gcp",
        "win --platform gcp --infrastructure ocp-7x2kq --image projects/windows-cloud/global/images/family/windows-2022-core --instance-type \
         n1-standard-4 --project demo --region us-central1 --zone us-central1-a --gpus 1",
    ),
    (
        "vsphere",
        "winworker --platform vsphere --infrastructure ocp-7x2kq --image windows-golden --cpus 4 --memory-mib 16384 --network segment-1 --datacenter \
         DC --datastore ds --folder /DC/vm/ocp-7x2kq --server vcenter.example.com",
    ),
    (
        "nutanix",
        "win --platform nutanix --infrastructure ocp-7x2kq --image windows-2022 --cpus 4 --memory-mib 16384 --prism-element \
         0005b0f1-8f43-a0f2-02b7-3cecef193712 --subnet c7938dc6-7659-453e-a688-e26020c68e43",
    ),
];

fn assert_golden(name: &str, found: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machineset_command/goldens").join(format!("{name}.yaml"));
    if env::var_os("UPDATE_GOLDENS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found, expected,
        "if this is meant: UPDATE_GOLDENS=1 cargo test -p controller --lib -- machineset_command"
    );
}

#[test]
fn each_platform_has_a_manifest() {
    for (platform, args) in COMPLETE {
        assert_golden(platform, &of(args, None).unwrap());
    }
}

fn worker() -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
        "metadata": {
            "name": "ocp-7x2kq-worker-us-east-1a", "namespace": "openshift-machine-api",
            "annotations": {"machine.openshift.io/vCPU": "4", "machine.openshift.io/memoryMb": "16384", "machine.openshift.io/GPU": "0"},
        },
        "spec": {"template": {
            "metadata": {"labels": {"machine.openshift.io/cluster-api-machine-role": "worker"}},
            "spec": {"providerSpec": {"value": {
                "apiVersion": "machine.openshift.io/v1beta1", "kind": "AWSMachineProviderConfig",
                "ami": {"id": "ami-of-linux"},
                "blockDevices": [{"ebs": {"encrypted": true, "volumeSize": 120, "volumeType": "gp3"}}],
                "instanceType": "m6i.xlarge",
                "iamInstanceProfile": {"id": "another-profile"},
                "metadataServiceOptions": {},
                "placement": {"availabilityZone": "us-east-1a", "region": "us-east-1"},
                "securityGroups": [{"id": "sg-1"}, {"id": "sg-2"}],
                "subnet": {"id": "subnet-1"},
                "userDataSecret": {"name": "worker-user-data"},
            }}},
        }},
    })
}

async fn cluster() -> Cluster {
    let api = FakeApi::new();
    let infrastructure = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": {"name": "cluster"},
        "status": {"infrastructureName": "ocp-7x2kq", "platformStatus": {"type": "AWS"}},
    });
    api.on("GET", "/apis/config.openshift.io/v1/infrastructures/cluster", 200, infrastructure);
    let sets = json!({"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSetList", "metadata": {}, "items": [worker()]});
    api.on("GET", "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machinesets", 200, sets);
    read(api.client()).await.unwrap()
}

#[tokio::test]
async fn what_linux_workers_have_stays_except_what_windows_needs() {
    let cluster = cluster().await;
    let found = of("win --platform aws --image ami-0a1", Some(&cluster)).unwrap();
    assert_golden("aws-of-a-cluster", &found);
    for (line, is_there) in
        [("id: another-profile", true), ("id: sg-2", true), ("ami-of-linux", false), ("worker-user-data", false)]
    {
        assert_eq!(found.contains(line), is_there, "{line}: {found}");
    }
    // What the autoscaler reads is not that of another type.
    let other = of("win --platform aws --image ami-0a1 --instance-type m5a.large", Some(&cluster)).unwrap();
    assert!(other.contains("instanceType: m5a.large") && !other.contains("vCPU"), "{other}");
    let same_zone = of("win --platform aws --image ami-0a1 --zone us-east-1a", Some(&cluster)).unwrap();
    assert_eq!(same_zone, found);
    // The subnet of a worker is of no use in another zone.
    let other_zone = "win --platform aws --image ami-0a1 --zone us-east-1b";
    assert!(of(other_zone, Some(&cluster)).unwrap_err().to_string().contains("not known: --subnet;"));
    let named = of(&format!("{other_zone} --subnet private-1b"), Some(&cluster)).unwrap();
    assert!(named.contains("private-1b") && !named.contains("subnet-1") && named.contains("id: sg-1"), "{named}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let values =
        |platform: &str| COMPLETE.iter().find(|(name, _)| *name == platform).unwrap().1.split_once(' ').unwrap().1;
    let named = |name: &str, platform: &str| format!("{name} {}", values(platform));
    let long = "the name winworkers has 10 characters, and on this platform at most 9 are allowed: the name of a Machine, which has 6 more, becomes the \
                name of the host, and Windows allows 15 characters there (NetBIOS)";
    for (args, message) in [
        (named("winworkers", "vsphere"), long),
        (named("winworkers", "azure"), long),
        (named("winworker", "vsphere"), ""),
        (named("winworkers-of-a-long-name", "aws"), ""),
        (named(&"a".repeat(58), "aws"), "is not a name for a MachineSet"),
        (named("Win", "aws"), "\"Win\" is not a name for a MachineSet"),
        (named("win-", "aws"), "is not a name for a MachineSet"),
        ("win --platform none".to_owned(), "list the hosts in a WindowsNodePool instead"),
        (
            "win --platform vsphere --image t --cpus 4".to_owned(),
            "these values are not known: --datacenter, --datastore, --folder, --infrastructure, --memory-mib, --network, --server; name them",
        ),
        (
            "win --platform aws".to_owned(),
            "--image, --infrastructure, --instance-type, --region, --security-group, --subnet, --zone;",
        ),
    ] {
        let found = of(&args, None).map_or_else(|e| e.to_string(), |_| String::new());
        assert!(found.contains(message) && found.is_empty() == message.is_empty(), "{args}: {found}");
    }
}

#[test]
fn an_image_of_ones_own_on_azure_has_no_publisher() {
    let (_, args) = COMPLETE[1];
    let found = of(&args.replace("2022-datacenter", "/subscriptions/a/images/win"), None).unwrap();
    assert!(
        found.contains("resourceID: /subscriptions/a/images/win") && !found.contains("MicrosoftWindowsServer"),
        "{found}"
    );
}
