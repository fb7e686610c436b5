//! Tests of the extraction of programs from images.

use std::process::Command;

use flate2::{Compression, write::GzEncoder};
use tar::EntryType;
use testbed::{binaries, registry::Registry};

use super::*;

/// Entry of an archive: its path, and its content or its link target.
enum Part<'a> {
    File(&'a str, &'a [u8]),
    Link(&'a str, &'a str),
    Folder(&'a str),
}
use Part::{File, Folder, Link};

fn archive(parts: &[Part<'_>]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for part in parts {
        let (path, type_, content, to) = match part {
            File(path, content) => (path, EntryType::Regular, *content, ""),
            Link(path, to) => (path, EntryType::Symlink, &[][..], *to),
            Folder(path) => (path, EntryType::Directory, &[][..], ""),
        };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(type_);
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.as_old_mut().linkname[..to.len()].copy_from_slice(to.as_bytes());
        // The name is set directly, because the library refuses a path that leads out.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        archive.append(&header, content).unwrap();
    }
    archive.into_inner().unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

/// Returns a file with the headers of a program for a processor.
fn exe(machine: [u8; 2], text: &str) -> Vec<u8> {
    let mut file = vec![0; 0x40];
    file[..2].copy_from_slice(b"MZ");
    file[0x3c] = 0x40;
    file.extend(b"PE\0\0");
    file.extend(machine);
    file.extend(text.as_bytes());
    file
}

const AMD64: [u8; 2] = [0x64, 0x86];
const HYBRID: &str = "payload/hybrid-overlay-node.exe";

/// Returns the content of the hybrid overlay's program after all layers are applied.
fn left(layers: &[Vec<u8>]) -> Option<String> {
    let mut files = Files::new();
    for layer in layers {
        read_layer(&layer[..], &mut files).unwrap();
    }
    let program = program(&files, REQUIRED).unwrap()?;
    Some(String::from_utf8(program[0x46..].to_vec()).unwrap())
}

#[test]
fn layers_are_read_as_runtimes_read_them() {
    let (one, two) = (exe(AMD64, "one"), exe(AMD64, "two"));
    let packed = gzip(&archive(&[File("hybrid-overlay-node.exe", &one)]));
    let base = || archive(&[Folder("payload/"), File(HYBRID, &one)]);
    let name = "payload/hybrid-overlay-node.exe.tar.gz";
    for (about, layers, expected) in [
        ("as it is", vec![base()], Some("one")),
        ("with a slash", vec![archive(&[File("/payload/hybrid-overlay-node.exe", &one)])], Some("one")),
        ("with a dot", vec![archive(&[File("./payload/hybrid-overlay-node.exe", &one)])], Some("one")),
        ("gzip", vec![gzip(&base())], Some("one")),
        ("zstd", vec![zstd::encode_all(&base()[..], 1).unwrap()], Some("one")),
        ("packed in the image", vec![archive(&[File(name, &packed)])], Some("one")),
        (
            "replaced by a packed one",
            vec![base(), archive(&[File(name, &gzip(&archive(&[File("hybrid-overlay-node.exe", &two)])))])],
            Some("two"),
        ),
        (
            "replaced by one that is not packed",
            vec![archive(&[File(name, &packed)]), archive(&[File(HYBRID, &two)])],
            Some("two"),
        ),
        ("replaced", vec![base(), archive(&[File(HYBRID, &two)])], Some("two")),
        ("removed", vec![base(), archive(&[File("payload/.wh.hybrid-overlay-node.exe", b"")])], None),
        ("its folder removed", vec![base(), archive(&[File(".wh.payload", b"")])], None),
        ("its folder emptied", vec![base(), archive(&[File("payload/.wh..wh..opq", b"")])], None),
        (
            "its folder emptied, and made again",
            vec![base(), archive(&[File(HYBRID, &two), File("payload/.wh..wh..opq", b"")])],
            Some("two"),
        ),
        ("a link in its place", vec![base(), archive(&[Link(HYBRID, "/etc/shadow")])], None),
        ("a link in the place of its folder", vec![base(), archive(&[Link("payload", "/")])], None),
        ("a folder in its place", vec![base(), archive(&[Folder(HYBRID)])], None),
        ("a path that leads out", vec![archive(&[File("payload/../payload/hybrid-overlay-node.exe", &one)])], None),
        ("elsewhere", vec![archive(&[File("tmp/hybrid-overlay-node.exe", &one)])], None),
        ("an empty layer", vec![base(), Vec::new()], Some("one")),
    ] {
        assert_eq!(left(&layers).as_deref(), expected, "{about}");
    }
}

#[test]
fn only_programs_for_windows_on_amd64_are_accepted() {
    for (about, content, expected) in [
        ("amd64", exe(AMD64, ""), true),
        ("arm64", exe([0x64, 0xaa], ""), false),
        ("a script", b"#!/bin/sh".to_vec(), false),
        ("too short", b"MZ".to_vec(), false),
        ("a header beyond the end", [&b"MZ"[..], &[0xff; 0x40]].concat(), false),
        ("empty", Vec::new(), false),
    ] {
        assert_eq!(is_windows_program(&content), expected, "{about}");
    }
}

#[test]
fn an_image_for_another_version_is_refused() {
    for (version, kubernetes, expected) in [
        (Some("v10.20.0"), "1.33", None),
        (Some("10.20.1-1749"), "1.33", None),
        (None, "1.33", None),
        (Some("v10.20.0"), "1.34", Some("for Kubernetes 1.33, and not for 1.34")),
        (Some("v11.1.0-rc.1"), "1.37", None),
        (Some("10.4294967295.0"), "1.34", Some("not a version of WMCO")),
        (Some("v1.2.3"), "1.33", Some("not a version of WMCO")),
        (Some("10."), "1.33", Some("not a version of WMCO")),
    ] {
        let error = fits(version, kubernetes).err().map(|error| error.to_string());
        match (error, expected) {
            (None, None) => {}
            (Some(error), Some(part)) => assert!(error.contains(part), "{error}"),
            (error, _) => panic!("{version:?} {kubernetes}: {error:?}"),
        }
    }
}

#[test]
fn logins_are_those_of_podman_and_docker() {
    let image: Reference =
        "registry.example.com/team/wmco@sha256:0000000000000000000000000000000000000000000000000000000000000000"
            .parse()
            .unwrap();
    let auth = |pair: &str| format!(r#"{{"auth": "{}"}}"#, STANDARD.encode(pair));
    for (about, logins, expected) in [
        ("the registry", format!(r#"{{"registry.example.com": {}}}"#, auth("me:it:is")), Ok(Some("me it:is"))),
        ("a URL", format!(r#"{{"https://registry.example.com/": {}}}"#, auth("me:a")), Ok(Some("me a"))),
        (
            "the longest",
            format!(
                r#"{{"registry.example.com": {}, "registry.example.com/team": {}}}"#,
                auth("all:a"),
                auth("team:a")
            ),
            Ok(Some("team a")),
        ),
        ("another repository", format!(r#"{{"registry.example.com/te": {}}}"#, auth("me:a")), Ok(None)),
        ("another registry", format!(r#"{{"registry.example": {}}}"#, auth("me:a")), Ok(None)),
        ("no base64", r#"{"registry.example.com": {"auth": "?"}}"#.into(), Err("not in base64")),
        ("a helper", r#"{}, "credHelpers": {"registry.example.com": "x"}"#.into(), Err("podman login")),
        ("a store", r#"{"registry.example.com": {}}, "credsStore": "x""#.into(), Err("podman login")),
    ] {
        let logins: Logins = serde_json::from_str(&format!(r#"{{"auths": {logins}}}"#)).unwrap();
        match (login_of(&logins, &image), expected) {
            (Ok(RegistryAuth::Basic(user, password)), Ok(Some(expected))) => {
                assert_eq!(format!("{user} {password}"), expected, "{about}");
            }
            (Ok(RegistryAuth::Anonymous), Ok(None)) => {}
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{about}: {error}"),
            (found, _) => panic!("{about}: {found:?}"),
        }
    }
}

fn crane(args: &[&str]) -> String {
    devenv::read(Command::new(binaries::crane().unwrap()).args(args)).unwrap()
}

#[test]
fn programs_come_out_of_an_image_of_a_registry() {
    let registry = Registry::start().unwrap();
    let files = tempfile::tempdir().unwrap();
    let (hybrid, proxy) = (exe(AMD64, "hybrid"), exe(AMD64, "proxy"));
    let packed = gzip(&archive(&[File("csi-proxy.exe", &proxy)]));
    let layers = [
        archive(&[File("usr/bin/of-the-base", &[7; 1 << 10]), File(HYBRID, &exe(AMD64, "old"))]),
        gzip(&archive(&[File(HYBRID, &hybrid), File("payload/csi-proxy/csi-proxy.exe.tar.gz", &packed)])),
    ];
    let name = format!("{}/wmco", registry.address());
    let tag = format!("{name}:1");
    let mut append = vec!["append".to_owned(), "--insecure".into(), "--new_tag".into(), tag.clone()];
    for (n, layer) in layers.iter().enumerate() {
        let file = files.path().join(format!("{n}.tar"));
        fs::write(&file, layer).unwrap();
        append.extend(["--new_layer".into(), file.display().to_string()]);
    }
    crane(&append.iter().map(String::as_str).collect::<Vec<_>>());
    crane(&[
        "mutate",
        "--insecure",
        "--set-platform",
        "linux/amd64",
        "--label",
        "version=v10.20.0",
        "--tag",
        &tag,
        &tag,
    ]);
    let image = format!("{name}@{}", crane(&["digest", "--insecure", &tag]));
    let index = format!("{name}:index");
    crane(&["index", "append", "--insecure", "--manifest", &image, "--tag", &index]);
    let index = format!("{name}@{}", crane(&["digest", "--insecure", &index]));
    let take = |image: &str, kubernetes: Option<&str>, out: &str| {
        let (auth_file, out) = (files.path().join("auth.json"), files.path().join(out));
        fs::write(&auth_file, "{}").unwrap();
        let kubernetes = kubernetes.map(Into::into);
        run(&Args { image: image.into(), out, kubernetes, auth_file: Some(auth_file), plain_http: true })
    };
    for (image, out) in [(&image, "image"), (&index, "index")] {
        take(image, Some("1.33"), out).unwrap();
        let read = |name: &str| fs::read(files.path().join(out).join(name)).ok();
        assert_eq!(read("hybrid-overlay-node.exe"), Some(hybrid.clone()), "{out}");
        assert_eq!(read("csi-proxy.exe"), Some(proxy.clone()), "{out}");
        assert_eq!(read("azure-cloud-node-manager.exe"), None, "{out}");
    }
    let unknown = format!("{name}@sha256:{}", "0".repeat(64));
    for (about, image, kubernetes, expected) in [
        ("a tag", &tag, None, "does not have a digest"),
        ("another version", &image, Some("1.34"), "not for 1.34"),
        ("another digest", &unknown, None, "cannot read"),
        ("no name", &"a b".to_owned(), None, "not the name of an image"),
    ] {
        let error = format!("{:#}", take(image, kubernetes, "refused").unwrap_err());
        assert!(error.contains(expected), "{about}: {error}");
    }
    assert!(!files.path().join("refused").exists(), "something was written");

    // A manifest with another size of a layer is refused.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(ClientConfig { protocol: ClientProtocol::Http, ..ClientConfig::default() });
    let reference: Reference = image.parse().unwrap();
    let pulled = runtime.block_on(client.pull_manifest_and_config(&reference, &RegistryAuth::Anonymous)).unwrap();
    let layer = &pulled.0.layers[1];
    let size = u64::try_from(layer.size).unwrap();
    for (size, expected) in [(size, None), (size - 1, Some("more bytes than")), (size + 1, Some("less than"))] {
        let error = runtime.block_on(download(&client, &reference, layer, size)).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), expected.is_some(), "{error:?}");
        assert!(expected.is_none_or(|part| error.unwrap().contains(part)), "{size}");
    }
}
