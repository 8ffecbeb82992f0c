//! Every setting, and every invalid one.

use std::collections::BTreeSet;

use crate::settings::*;

fn with(environment: &[(&'static str, &str)]) -> Result<Settings, Vec<Problem>> {
    let mut texts = Texts::new();
    for (name, value) in environment {
        texts.entry(name).or_insert((*value).to_owned());
    }
    parse(&texts, values_only)
}

/// The faults of `environment` (and an etcd), as text.
fn faults(environment: &[(&'static str, &str)]) -> Vec<String> {
    let mut environment = environment.to_vec();
    environment.push(("ETCD_HOST", "https://etcd"));
    with(&environment).err().unwrap_or_default().iter().map(Problem::to_string).collect()
}

#[test]
fn an_etcd_host_is_the_only_mandatory_setting() {
    let settings = with(&[("ETCD_HOST", "etcd")]).unwrap();
    assert_eq!(settings.pools.v4.unwrap().network().to_string(), "10.244.0.0/16");
    assert_eq!(settings.pools.v6, None);
    assert_eq!(settings.cni.plugin, PathBuf::from("/opt/cni/bin/humanz"));
    assert!(settings.masquerade && settings.manage_forward && !settings.cleanup_on_stop);
}

#[test]
fn a_host_that_is_alone_serves_any_subnet() {
    let alone =
        |more: &[(&'static str, &str)]| with(&[&[("SUBNET_SOURCE", "static")], more].concat());
    for (subnet, pool) in [
        ("10.88.0.0/16", "10.88.0.0/16"),
        ("10.4.0.0/24", "10.4.0.0/24"),
        ("192.168.0.4/30", "192.168.0.4/30"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.244.3.0/24", "10.244.0.0/16"),
    ] {
        let settings = alone(&[("SUBNET", subnet)]).unwrap();
        assert_eq!(settings.pool_networks().v4.unwrap().to_string(), pool, "{subnet}");
        let Source::Static(subnets) = &settings.source else { panic!("{:?}", settings.source) };
        assert_eq!(subnets.v4.unwrap().to_string(), subnet);
    }
    let both = alone(&[("SUBNET", "10.88.0.0/16,fd88::/64")]).unwrap();
    assert_eq!(both.pool_networks().v6.unwrap().to_string(), "fd88::/64");
    let faults = alone(&[("SUBNET", "10.88.0.0/16"), ("IP_SUBNET", "10.89.0.0/16")]).unwrap_err();
    let fault = faults[0].to_string();
    assert!(
        fault.contains(
            "10.88.0.0/16 lies outside the pool 10.89.0.0/16: correct IP_SUBNET, or leave it out"
        ),
        "{fault}"
    );
}

#[test]
fn a_missing_etcd_host_is_an_error_with_its_fix() {
    let faults = with(&[]).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].to_string().contains("ETCD_HOST is not set"), "{}", faults[0]);
    assert!(faults[0].what.contains("--standalone"));
}

#[test]
fn every_invalid_setting_is_reported_in_the_order_of_the_documentation() {
    let faults = faults(&[
        ("CNI_VERSION", "0.2.0"),
        ("IP_SUBNET", "10.1.2.3/16"),
        ("BRIDGE_NAME", "a/b"),
        ("MTU", "12"),
        ("IP_MASQ", "maybe"),
    ]);
    let variables: Vec<&str> =
        faults.iter().map(|fault| fault.split_once('=').unwrap().0).collect();
    assert_eq!(variables, ["IP_SUBNET", "BRIDGE_NAME", "MTU", "IP_MASQ", "CNI_VERSION"]);
    assert_eq!(
        faults[0],
        "IP_SUBNET=10.1.2.3/16: 10.1.2.3/16 has host bits set; the subnet is 10.1.0.0/16"
    );
}

#[test]
fn an_invalid_etcd_setting_hides_no_other() {
    let wrong = [
        ("ETCD_CACERT", "ca.pem"),
        ("ETCD_CERT", "c.pem"),
        ("ETCD_KEY", "k.pem"),
        ("ETCD_USER", "u"),
        ("ETCD_TIMEOUT", "1h"),
        ("ETCD_PREFIX", "a"),
        ("ETCD_COUNTER_KEY", "b"),
        ("HUMANZ_PREFIX", "c"),
    ];
    let found = faults(&wrong);
    for (variable, _) in wrong.iter().filter(|(variable, _)| *variable != "ETCD_USER") {
        let of_it = |fault: &&String| fault.starts_with(&format!("{variable}="));
        assert_eq!(found.iter().filter(of_it).count(), 1, "{variable}: {found:?}");
    }
    assert_eq!(found.len(), wrong.len(), "{found:?}");
}

#[test]
fn contradicting_settings_are_invalid() {
    for (environment, about) in [
        (&[("NODE_IP", "10.244.3.7")][..], "NODE_IP"),
        (&[("IP_SUBNET", "none")], "IP_SUBNET"),
        (&[("IP_SUBNET_MARGIN", "15")], "IP_SUBNET_MARGIN"),
        (&[("IPV6_SUBNET", "10.0.0.0/8")], "IPV6_SUBNET"),
        (&[("ETCD_PREFIX", "/a"), ("HUMANZ_PREFIX", "/ab")], "HUMANZ_PREFIX"),
        (&[("ETCD_COUNTER_KEY", "/humanz/hosts/counter")], "ETCD_COUNTER_KEY"),
        (&[("ETCD_CERT", "/c")], "ETCD_KEY"),
        (&[("ETCD_KEY", "/k")], "ETCD_CERT"),
        (&[("ETCD_USER", "u")], "ETCD_PASSWORD_FILE"),
        (&[("ETCD_PASSWORD_FILE", "/p")], "ETCD_USER"),
        (
            &[("CNI_TYPE", "cni"), ("CNI_PLUGIN_LOCATION", "/opt/cni/bin/humanz")],
            "CNI_PLUGIN_LOCATION",
        ),
        (&[("CNI_TYPE", "loopback"), ("CNI_PLUGIN_LOCATION", "/opt/cni/bin/humanz")], "CNI_TYPE"),
        (&[("CNI_CONFIG_LOCATION", "/etc/cni/net.d/humanz")], "CNI_CONFIG_LOCATION"),
        (&[("SUBNET_SOURCE", "magic")], "SUBNET_SOURCE"),
        (&[("BACKEND", "carrier-pigeon")], "BACKEND"),
        (&[("VXLAN_VNI", "16777216")], "VXLAN_VNI"),
        (&[("VXLAN_VNI", "0")], "VXLAN_VNI"),
        (&[("VXLAN_PORT", "65536")], "VXLAN_PORT"),
        (&[("VXLAN_PORT", "0")], "VXLAN_PORT"),
        (&[("ENCRYPTION", "on")], "ENCRYPTION=on: must be off or wireguard"),
        (&[("ENCRYPTION_STRICT", "perhaps")], "ENCRYPTION_STRICT"),
        (&[("ENCRYPTION_PORT", "0")], "ENCRYPTION_PORT"),
        (&[("ENCRYPTION_PSK_FILE", "psk")], "ENCRYPTION_PSK_FILE=psk: must be a path"),
        (&[("ENCRYPTION_PSK_FILE", "/etc/../psk")], "ENCRYPTION_PSK_FILE"),
        (
            &[("ENCRYPTION", "wireguard"), ("ENCRYPTION_PORT", "10400")],
            "ENCRYPTION_PORT=10400: VXLAN_PORT is the same",
        ),
        (&[("ENCRYPTION", "wireguard"), ("FLOWTABLE", "true")], "FLOWTABLE"),
        (
            &[("ENCRYPTION", "wireguard"), ("SUBNET_SOURCE", "kubernetes")],
            "ENCRYPTION=wireguard: hosts learn each other's keys from etcd",
        ),
    ] {
        let faults = faults(environment);
        assert!(faults.len() == 1 && faults[0].starts_with(about), "{environment:?}: {faults:?}");
    }
}

#[test]
fn files_for_tls_require_https_for_every_member() {
    let fault = |hosts: &str, files: &[(&'static str, &str)]| {
        let found = with(&[&[("ETCD_HOST", hosts)], files].concat());
        found.err().map(|faults| {
            assert_eq!(faults.len(), 1, "{faults:?}");
            faults[0].to_string()
        })
    };
    let (ca, pair) = (&[("ETCD_CACERT", "/ca")], &[("ETCD_CERT", "/c"), ("ETCD_KEY", "/k")]);
    assert_eq!(fault("https://a,https://[2001:db8::1]:1", ca), None);
    assert_eq!(fault("https://a", pair), None);
    assert_eq!(fault("a", &[]), None);
    let bare = fault("https://a,192.0.2.1", ca).unwrap();
    assert!(bare.starts_with("ETCD_HOST=https://a,192.0.2.1: ETCD_CACERT is set"), "{bare}");
    assert!(bare.ends_with("write https://192.0.2.1:2379"), "{bare}");
    let plain = fault("http://[2001:db8::1]:7", pair).unwrap();
    assert!(plain.contains("ETCD_CERT") && plain.ends_with("https://[2001:db8::1]:7"), "{plain}");
}

#[test]
fn one_host_needs_no_etcd() {
    let settings = with(&[("SUBNET_SOURCE", "static")]).unwrap();
    let Source::Static(subnets) = settings.source else { panic!("not static") };
    assert_eq!(subnets.v4.unwrap().to_string(), "10.244.1.0/24");
}

#[test]
fn policies_come_from_one_place() {
    let on = |more: &[(&'static str, &str)]| {
        let found = with(&[more, &[("POLICY", "on"), ("ETCD_HOST", "e")]].concat());
        found.map(|settings| settings.policy.unwrap().providers(&settings.source)).map_err(
            |faults| {
                assert_eq!(faults.len(), 1, "{faults:?}");
                faults[0].to_string()
            },
        )
    };
    let (kubernetes, file) = (("SUBNET_SOURCE", "kubernetes"), ("POLICY_FILE", "/p"));
    assert_eq!(on(&[kubernetes]), Ok(vec![Provider::Kubernetes]));
    assert!(on(&[kubernetes, file]).unwrap_err().contains("from the API alone"));
    assert_eq!(on(&[]), Ok(vec![Provider::Etcd, Provider::Members]));
    let alone = on(&[("SUBNET_SOURCE", "static")]).unwrap_err();
    assert!(alone.starts_with("POLICY_FILE is not set: with SUBNET_SOURCE=static"), "{alone}");
    assert_eq!(on(&[("SUBNET_SOURCE", "static"), file]), Ok(vec![Provider::File]));

    let beside = ("POLICY", "kubernetes");
    let all = [Provider::Kubernetes, Provider::Etcd, Provider::Members];
    assert_eq!(on(&[beside]), Ok(all.to_vec()));
    assert_eq!(on(&[beside, file]), Ok([&[Provider::File][..], &all].concat()));
    assert_eq!(on(&[beside, kubernetes]), Ok(vec![Provider::Kubernetes]));
    let alone = on(&[beside, ("SUBNET_SOURCE", "static"), file]).unwrap_err();
    assert!(
        alone.starts_with("POLICY=kubernetes: with SUBNET_SOURCE=static nothing says"),
        "{alone}"
    );
    let objects = |more: &[(&'static str, &str)]| {
        let found = with(&[&[("POLICY", "kubernetes"), ("ETCD_HOST", "e")], more].concat());
        found.unwrap().policy.unwrap().objects
    };
    let of_api = ("POLICY_OBJECTS", "kubernetes");
    assert_eq!(objects(&[]), ObjectSource::Etcd);
    assert_eq!(objects(&[of_api]), ObjectSource::Kubernetes);
    assert_eq!(objects(&[kubernetes]), ObjectSource::Kubernetes, "there is no other place");
    let nowhere = on(&[("POLICY", "on"), of_api]).unwrap_err();
    assert!(nowhere.starts_with("POLICY_OBJECTS=kubernetes: "), "{nowhere}");
    let relative = on(&[beside, ("KUBECONFIG", "config")]).unwrap_err();
    assert!(relative.starts_with("KUBECONFIG=config: "), "{relative}");
    assert!(on(&[beside, ("POD_ROUTING", "bridge")]).unwrap_err().starts_with("POD_ROUTING="));
}

#[test]
fn ipv6_alone_is_a_network() {
    let settings = with(&[("ETCD_HOST", "e"), ("IP_SUBNET", "none"), ("IPV6_SUBNET", "fd00::/48")]);
    assert!(settings.unwrap().pools.v4.is_none());
}

#[test]
fn encryption_is_off_unless_it_is_asked_for_and_then_strict() {
    let of = |more: &[(&'static str, &str)]| {
        with(&[&[("ETCD_HOST", "https://etcd")], more].concat()).unwrap()
    };
    let off = of(&[]);
    assert_eq!(off.encryption, None);
    assert!(off.has_tunnels());
    let strict = of(&[("ENCRYPTION", "wireguard")]);
    let week = Some(Duration::from_secs(7 * 24 * 3600));
    assert_eq!(
        strict.encryption,
        Some(EncryptionSettings { port: 10401, strict: true, rotate: week })
    );
    assert!(!strict.has_tunnels(), "VXLAN is clear text");
    let ports = strict.reserved_ports(&BTreeSet::new()).into_iter().map(|port| port.purpose);
    assert_eq!(ports.collect::<Vec<_>>(), ["encryption (ENCRYPTION_PORT)"; 2]);
    let loose = of(&[("ENCRYPTION", "wireguard"), ("ENCRYPTION_STRICT", "false")]);
    assert!(loose.has_tunnels() && !loose.encryption.unwrap().strict);
    let file = ("ENCRYPTION_PSK_FILE", "/etc/humanz/psk");
    assert_eq!(of(&[("ENCRYPTION", "wireguard"), file]).psk_file, Some("/etc/humanz/psk".into()));
    assert_eq!((of(&[file]).psk_file, strict.psk_file), (None, None));
    assert_eq!(loose.reserved_ports(&BTreeSet::new()).len(), 3);
}

#[test]
fn the_port_of_an_etcd_on_this_host_is_reserved_and_that_of_others_is_not() {
    let reserved = |endpoints: &str| {
        let own = ["192.0.2.11".parse().unwrap()].into();
        let ports = with(&[("ETCD_HOST", endpoints)]).unwrap().reserved_ports(&own).into_iter();
        let ports = ports.filter(|port| port.purpose == "etcd (ETCD_HOST)");
        ports.map(|port| format!("{:?} {}", port.host_ip, port.host_port)).collect::<Vec<_>>()
    };
    for (endpoints, wanted) in [
        ("127.0.0.1", "Some(127.0.0.1) 2379"),
        ("https://localhost:4001", "Some(127.0.0.1) 4001"),
        ("http://192.0.2.12,http://192.0.2.11:2379", "Some(192.0.2.11) 2379"),
        ("https://[::1]:2379", "Some(::1) 2379"),
    ] {
        assert_eq!(reserved(endpoints), [wanted], "{endpoints}");
    }
    assert_eq!(reserved("192.0.2.12,etcd.example"), [""; 0]);
}
