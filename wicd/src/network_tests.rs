//! Tests of the host network.

use super::*;
use crate::fake::FakeHost;
use proptest::prelude::*;

const ID: &str = "8A6CE3D1-0F3B-4B7E-9C7E-1D2A3B4C5D6E";
const ENDPOINT_ID: &str = "1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

/// Creates the network, as hybrid-overlay-node does, and the endpoint, as HNS does.
pub(crate) fn make_network(host: &FakeHost) {
    let network = json!([{"ID": ID, "Name": HNS_NETWORK, "ManagementIP": "10.0.0.1",
        "Subnets": [{"AddressPrefix": "10.132.1.0/24"}]}]);
    let endpoint =
        json!([{"ID": "ab-1", "Name": ENDPOINT, "VirtualNetwork": ID, "MacAddress": "00-15-5D-00-00-09", "State": 2}]);
    let mut state = host.state();
    state.hns.extend([("/networks".to_owned(), network), ("/endpoints".to_owned(), endpoint)]);
    state.adapters = vec![Adapter { mac: vec![0, 0x15, 0x5d, 0, 0, 9], ipv4: vec![[10, 132, 1, 2].into()] }];
}

fn config() -> OvnHybridNetwork {
    OvnHybridNetwork { service_cidr: "172.30.0.0/16".into(), kubeconfig: r"C:\k\node-kubeconfig".into(), verbosity: 0 }
}

fn wish(config: &OvnHybridNetwork) -> DesiredNetwork<'_> {
    DesiredNetwork { config, node_name: "win-1", node_subnet: Some("10.132.1.0/24") }
}

/// Returns HNS' answers and the adapters of a host that is set up completely.
fn complete() -> ObservedNetwork {
    ObservedNetwork {
        networks: json!([
            {"ID": "C08CB7B8-9B3C-408E-8E30-5E16A3AEB444", "Name": "nat", "Type": "nat", "ManagementIP": "10.0.0.7"},
            {"ID": "00000000-0000-0000-0000-00000000BA5E", "Name": "BaseOVNKubernetesHybridOverlayNetwork",
             "Subnets": [{"AddressPrefix": "100.64.0.0/30"}], "ManagementIP": "10.0.0.7"},
            {"ID": ID, "Name": HNS_NETWORK, "Type": "Overlay", "ManagementIP": "10.0.0.7",
             "Subnets": [{"AddressPrefix": "10.132.1.0/24", "GatewayAddress": "10.132.1.1",
                          "Policies": [{"Type": "VSID", "VSID": 4097}]}]},
        ]),
        endpoints: json!([
            {"ID": "aaaa", "Name": "cid_eth0", "MacAddress": "00-15-5D-00-00-01", "VirtualNetwork": ID},
            {"ID": ENDPOINT_ID, "Name": ENDPOINT, "MacAddress": "00-15-5D-0a-0B-0C", "IPAddress": "10.132.1.2",
             "VirtualNetwork": ID.to_lowercase(), "State": 2},
        ]),
        adapters: vec![
            Adapter { mac: vec![], ipv4: vec![] },
            Adapter { mac: vec![0, 0x15, 0x5d, 1, 2, 3], ipv4: vec![Ipv4Addr::new(10, 0, 0, 7)] },
            Adapter { mac: vec![0, 0x15, 0x5d, 10, 11, 12], ipv4: vec![Ipv4Addr::new(10, 132, 1, 2)] },
        ],
    }
}

fn written(steps: &Steps) -> (Value, Value) {
    let Steps { cni_conf: Some(cni), next: Next::Write(proxy) } = steps else { panic!("{steps:?}") };
    (serde_json::from_str(cni).unwrap(), serde_json::from_str(proxy).unwrap())
}

/// Compares the fields and values with those that WMCO's script writes and that the programs accept.
#[test]
fn both_files_have_the_content_of_the_legacy_script() {
    let (cni, proxy) = written(&steps(&complete(), wish(&config())));
    let golden = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(cni, golden(include_str!("network/cni.json")));
    assert_eq!(proxy, golden(include_str!("network/kube-proxy.json")));
}

#[test]
fn kube_proxy_gets_the_subnet_of_the_annotation_or_of_the_network() {
    for (annotation, expected) in [(Some("10.132.9.0/24"), "10.132.9.0/24"), (None, "10.132.1.0/24")] {
        let (cni, proxy) = written(&steps(&complete(), DesiredNetwork { node_subnet: annotation, ..wish(&config()) }));
        assert_eq!(proxy["clusterCIDR"], expected);
        assert_eq!(cni["ipam"]["subnet"], "10.132.1.0/24", "pods get addresses that the network has");
    }
    let node = json!({"metadata": {"annotations": {NODE_SUBNET: "10.132.1.0/24"}}});
    assert_eq!(node_subnet(Some(&node)), Some("10.132.1.0/24"));
    assert_eq!(node_subnet(Some(&json!({"metadata": {}}))), None);
    assert_eq!(node_subnet(None), None);
}

#[test]
fn each_state_of_the_network_has_its_next_step() {
    type Change = fn(&mut ObservedNetwork);
    const NO_NETWORK: &str = "hybrid-overlay-node has not created the network OVNKubernetesHybridOverlayNetwork yet";
    // Awaited prerequisite or next step, and whether the CNI configuration is known already.
    let cases: [(&str, Change, &str, bool); 22] = [
        ("complete", |_| (), "write", true),
        ("HNS has nothing", |s| s.networks = Value::Null, NO_NETWORK, false),
        ("no network", |s| s.networks = json!([]), NO_NETWORK, false),
        ("only others", |s| drop(s.networks.as_array_mut().unwrap().pop()), NO_NETWORK, false),
        ("no list", |s| s.networks = json!({"Name": HNS_NETWORK}), NO_NETWORK, false),
        ("no ID", |s| s.networks[2]["ID"] = json!(7), "ID of the network", false),
        ("an ID that leads elsewhere", |s| s.networks[2]["ID"] = json!("../x"), "ID of the network", false),
        ("no subnet", |s| s.networks[2]["Subnets"] = json!([]), "IPv4 subnet", false),
        ("IPv6", |s| s.networks[2]["Subnets"][0]["AddressPrefix"] = json!("fd00::/64"), "IPv4 subnet", false),
        ("no address yet", |s| s.networks[2]["ManagementIP"] = json!(""), "management address", false),
        ("no endpoint", |s| s.endpoints = Value::Null, "POST /endpoints", true),
        ("endpoint of others", |s| s.endpoints[1]["Name"] = json!("x"), "POST /endpoints", true),
        ("endpoint of an older network", |s| s.endpoints[1]["VirtualNetwork"] = json!("0"), "POST /endpoints", true),
        ("network of the endpoint unknown", |s| s.endpoints[1]["VirtualNetwork"] = Value::Null, "write", true),
        ("no MAC address", |s| s.endpoints[1]["MacAddress"] = json!("x"), "MAC address of its endpoint", true),
        (
            "not attached",
            |s| {
                s.adapters.clear();
                s.endpoints[1]["State"] = json!(1);
            },
            "POST /endpoints/1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0/attach",
            true,
        ),
        ("attached a moment ago", |s| s.adapters.clear(), "no network adapter for the HNS endpoint", true),
        (
            "not attached, and a bad ID",
            |s| {
                s.adapters.clear();
                s.endpoints[1]["State"] = Value::Null;
                s.endpoints[1]["ID"] = json!("a/b");
            },
            "ID of its endpoint",
            true,
        ),
        (
            "an adapter that a removed endpoint has left",
            |s| {
                s.adapters[2].ipv4.clear();
                s.endpoints[1]["State"] = json!(1);
            },
            "/attach",
            true,
        ),
        (
            "adapters of removed endpoints beside that of the new endpoint",
            |s| {
                let left = Adapter { ipv4: Vec::new(), ..s.adapters[2].clone() };
                s.adapters.insert(0, left.clone());
                s.adapters.push(left);
            },
            "write",
            true,
        ),
        ("no address", |s| s.adapters[2].ipv4.clear(), "has no address in 10.132.1.0/24 yet", true),
        (
            "an address that the adapter gave itself",
            |s| s.adapters[2].ipv4 = vec![Ipv4Addr::new(192, 168, 1, 2)],
            "has no address in 10.132.1.0/24 yet",
            true,
        ),
    ];
    for (name, change, expected, has_cni) in cases {
        let mut seen = complete();
        change(&mut seen);
        let steps = steps(&seen, wish(&config()));
        let next = match &steps.next {
            Next::Wait(missing) => missing.clone(),
            Next::MakeEndpoint(r) | Next::AttachEndpoint(r) => format!("{} {}", r.method, r.path),
            Next::Write(_) => "write".into(),
        };
        let exact = expected.starts_with("POST") || expected == "write";
        assert!(if exact { next == expected } else { next.contains(expected) }, "{name}: {next}");
        assert_eq!(steps.cni_conf.is_some(), has_cni, "{name}");
    }
}

#[test]
fn requests_create_and_attach_the_endpoint() {
    let mut seen = complete();
    seen.adapters.clear();
    seen.endpoints[1]["State"] = json!(1);
    let Next::AttachEndpoint(attach) = steps(&seen, wish(&config())).next else { panic!() };
    let body: Value = serde_json::from_str(&attach.body).unwrap();
    assert_eq!(body, json!({"SystemType": "Host", "CompartmentId": 1}));
    seen.endpoints = json!([]);
    let Next::MakeEndpoint(make) = steps(&seen, wish(&config())).next else { panic!() };
    let body: Value = serde_json::from_str(&make.body).unwrap();
    assert_eq!(body, json!({"Name": "VIPEndpoint", "VirtualNetwork": ID}));
}

#[test]
fn an_invalid_network_of_the_cluster_is_refused() {
    for bad in
        ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "fd00::/64", "10.0.0.0/24\nmode: x", "10.0.0.0/24,fd00::/64"]
    {
        let config = OvnHybridNetwork { service_cidr: bad.into(), ..config() };
        let Steps { cni_conf: None, next: Next::Wait(why) } = steps(&complete(), wish(&config)) else {
            panic!("{bad}")
        };
        assert!(why.contains("services ConfigMap") && !why.contains('\n'), "{why}");

        let good = self::config();
        let next = steps(&complete(), DesiredNetwork { node_subnet: Some(bad), ..wish(&good) }).next;
        let Next::Wait(why) = next else { panic!("{bad}") };
        assert!(why.contains(NODE_SUBNET) && !why.contains('\n'), "{why}");
    }
}

#[test]
fn networks_contain_addresses() {
    for (network, ip, expected) in [
        ("10.132.1.0/24", [10, 132, 1, 255], true),
        ("10.132.1.0/24", [10, 132, 2, 0], false),
        ("10.132.1.7/24", [10, 132, 1, 1], true),
        ("10.132.1.0/32", [10, 132, 1, 0], true),
        ("10.132.1.0/32", [10, 132, 1, 1], false),
        ("0.0.0.0/0", [203, 0, 113, 1], true),
    ] {
        assert_eq!(Ipv4Network::parse(network).unwrap().contains(ip.into()), expected, "{network} {ip:?}");
    }
}

fn hns(host: &FakeHost, seen: &ObservedNetwork) {
    let mut state = host.state();
    state.hns.insert("/networks".into(), seen.networks.clone());
    state.hns.insert("/endpoints".into(), seen.endpoints.clone());
    state.adapters.clone_from(&seen.adapters);
}

#[test]
fn files_are_claimed_and_written_once() {
    let host = FakeHost::temporary();
    let config = config();
    hns(&host, &complete());
    assert_eq!(prepare(&host, wish(&config), false).unwrap(), Progress::Ready);
    let owned = Ownership::load(&host).unwrap().unwrap();
    assert_eq!(owned.files, [CNI_CONF, KUBE_PROXY_CONF].map(String::from).into());
    assert!(owned.directories.contains(CNI_DIRECTORY), "{owned:?}");

    let modified = || {
        let time = |path| std::fs::metadata(host.path(path).unwrap()).unwrap().modified().unwrap();
        [CNI_CONF, KUBE_PROXY_CONF, api::host::path::OWNED].map(time)
    };
    let before = modified();
    assert_eq!(prepare(&host, wish(&config), true).unwrap(), Progress::Ready);
    assert_eq!(modified(), before);
    assert!(host.state().hns_posts.is_empty());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[0-9a-fA-F./:-]{0,20}".prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[A-Za-z]{0,8}", inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

/// Locations in the answers of HNS.
const PLACES: [&str; 12] = [
    "",
    "/2",
    "/2/ID",
    "/2/Name",
    "/2/Subnets",
    "/2/Subnets/0",
    "/2/Subnets/0/AddressPrefix",
    "/2/ManagementIP",
    "/1",
    "/1/MacAddress",
    "/1/ID",
    "/1/State",
];

proptest! {
    /// No answer of HNS makes the code panic; all requests are for endpoints, and the files have valid content.
    #[test]
    fn any_answer_of_hns_is_used_or_refused(
        changes in prop::collection::vec((any::<bool>(), prop::sample::select(PLACES.to_vec()), any_json()), 0..4),
        macs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..3),
        keep in any::<bool>(),
        subnet in proptest::option::of(".{0,20}"),
    ) {
        let mut seen = complete();
        for (endpoints, place, value) in changes {
            let list = if endpoints { &mut seen.endpoints } else { &mut seen.networks };
            if let Some(at) = list.pointer_mut(place) {
                *at = value;
            }
        }
        if !keep {
            seen.adapters.clear();
        }
        seen.adapters.extend(macs.into_iter().map(|mac| Adapter { mac, ipv4: vec![] }));
        let steps = steps(&seen, DesiredNetwork { node_subnet: subnet.as_deref(), ..wish(&config()) });
        if let Some(cni) = &steps.cni_conf {
            let cni: Value = serde_json::from_str(cni).unwrap();
            prop_assert!(Ipv4Network::parse(cni["ipam"]["subnet"].as_str().unwrap()).is_some());
            prop_assert!(cni["policies"][2]["value"]["settings"]["providerAddress"].as_str().unwrap().parse::<Ipv4Addr>().is_ok());
        }
        match &steps.next {
            Next::Wait(missing) => prop_assert!(!missing.contains(char::is_control), "{missing:?}"),
            Next::MakeEndpoint(request) => prop_assert_eq!(&request.path, "/endpoints"),
            Next::AttachEndpoint(request) => {
                let id = request.path.strip_prefix("/endpoints/").and_then(|p| p.strip_suffix("/attach"));
                prop_assert!(id.is_some_and(is_id), "{}", request.path);
            }
            Next::Write(proxy) => {
                let proxy: Value = serde_json::from_str(proxy).unwrap();
                prop_assert!(Ipv4Network::parse(proxy["clusterCIDR"].as_str().unwrap()).is_some());
                prop_assert!(proxy["winkernel"]["sourceVip"].as_str().unwrap().parse::<Ipv4Addr>().is_ok());
            }
        }
    }
}

#[test]
fn the_directory_of_cni_is_claimed_only_if_wicd_writes_to_it() {
    let service = |prepare| api::services::Service { prepare, ..api::services::Service::default() };
    let trees_of = |prepare| trees(&ServicesConfig { services: vec![service(prepare)], ..ServicesConfig::default() });
    assert_eq!(trees_of(Some(Prepare::OvnHybridNetwork(config()))).as_deref(), Some(r"C:\k\cni\config"));
    assert_eq!(trees_of(None), None, "the pod network belongs to another component, and so does its configuration");
}

#[test]
fn the_vxlan_port_is_read_from_the_command_line() {
    for (command, expected) in [
        (r"C:\k\hybrid-overlay-node.exe --node x", Some(4789)),
        ("x --hybrid-overlay-vxlan-port 9898", Some(9898)),
        ("x --hybrid-overlay-vxlan-port=9898 --node y", Some(9898)),
        ("x -hybrid-overlay-vxlan-port \"9898\"", Some(9898)),
        ("x --hybrid-overlay-vxlan-port", None),
        ("x --hybrid-overlay-vxlan-port 70000", None),
        ("x --hybrid-overlay-vxlan-port --node", None),
    ] {
        assert_eq!(vxlan_port(command), expected, "{command}");
    }
}
