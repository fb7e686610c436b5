//! `cargo xtask image`: builds the operator's images and their SBOM.

mod audit;
mod sbom;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;
use remote::payload::Payload;
use testbed::image::{self, Arch, Built, Compiler, Files, Images, Profile, Store, must_gather};
use wnp_core::rollout::release_file::ReleaseFile;

use crate::{deploy::VERSION, sign::Signer};

/// Builds the operator's images and their SBOM, without a container engine and without a base image.
///
/// Needs buildah and musl-gcc, which `cargo xtask setup` installs, and Go for the payload. For --arch arm64, the command lists further requirements.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Payload for hosts, from `cargo xtask payload`.
    #[arg(long, value_name = "DIR")]
    payload: PathBuf,
    /// Processor of the nodes on which the operator runs: amd64 or arm64. The payload and wicd.exe are for hosts with amd64 in both.
    #[arg(long, default_value = "amd64")]
    arch: Arch,
    /// Folder for the images, each in the layout of the Open Container Initiative, and for the SBOM.
    #[arg(long, default_value = "target/image")]
    out: PathBuf,
    /// Compile the operator as for tests, and leave out the client for Windows: the build takes minutes, and the program is slow.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    signer: Signer,
    /// Build everything a second time, from a copy of the sources in another folder, and fail if a digest differs.
    #[arg(long, conflicts_with = "program")]
    check_reproducible: bool,
}

/// Builds the images.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut programs = vec!["buildah", args.arch.compiler(), args.arch.objcopy()];
    if args.arch == Arch::Amd64 {
        programs.extend([must_gather::BASH, must_gather::BUSYBOX]);
    }
    let missing = image::missing(args.arch, &programs);
    ensure!(missing.is_empty(), "missing requirements: {}; {}", missing.join(", "), args.arch.remedy());
    check_payload(&args.payload)?;
    let out = workspace_root().join(&args.out);
    let revision = revision();
    if revision.is_none() {
        println!("The images do not name a commit: the repository has uncommitted changes, or git failed.");
    }
    let (files, images) = build(args, &Compiler::new()?, revision.as_deref(), &out)?;
    let sbom = out.join("sbom.cdx.json");
    fs::write(&sbom, sbom::of(&files)?).with_context(|| format!("cannot write {}", sbom.display()))?;
    if args.check_reproducible {
        let folder = tempfile::tempdir_in(&out)?;
        let elsewhere = Compiler::elsewhere(folder.path())?;
        let (again, second) = build(args, &elsewhere, revision.as_deref(), &folder.path().join("out"))?;
        let programs = |files: &Files| {
            let Files { operator, client, client_for_windows, wicd, .. } = files.clone();
            [operator, client, wicd].into_iter().chain(client_for_windows)
        };
        for (one, other) in programs(&files).zip(programs(&again)) {
            ensure!(
                fs::read(&one)? == fs::read(other)?,
                "{} differs when it is built in another folder",
                one.display()
            );
        }
        ensure!(digests(&images) == digests(&second), "digests differ: {images:?} and {second:?}");
        println!("A second build, in another folder, has the same digests.");
    }
    for Built { name, layout, digest } in all(&images) {
        println!("{name} {digest}\n  {}", layout.display());
    }
    println!("SBOM\n  {}", sbom.display());
    Ok(())
}

/// Checks that the operator accepts a payload, that all its files are intact, and that services of hosts can be rendered for each of its
/// versions of Kubernetes. Finds a fault before it is in the cluster.
fn check_payload(payload: &Path) -> Result<()> {
    let opened = Payload::open(payload).with_context(|| format!("cannot open {}", payload.display()))?;
    opened.verify_all().with_context(|| format!("cannot verify {}", payload.display()))?;
    ReleaseFile::new(VERSION, &"0".repeat(64), opened.by_minor().clone())
        .context("cannot render the services of hosts")?;
    Ok(())
}

fn build(args: &Args, compiler: &Compiler, revision: Option<&str>, out: &Path) -> Result<(Files, Images)> {
    let profile = if args.quick { Profile::Test } else { Profile::Release };
    let crates = sbom::crates("controller", args.arch.target())?;
    let program = |name| {
        let program = compiler.program(name, args.arch, profile, revision.map(short))?;
        ensure!(
            args.arch.runs(&fs::read(&program)?),
            "{} is not a program for {}",
            program.display(),
            args.arch.name()
        );
        audit::with_crates(args.arch.objcopy(), &program, "controller", &crates, out)
    };
    let client_for_windows = || {
        let name = format!("{}.exe", image::CLIENT);
        let (unsigned, signed) = (out.join("program").join(&name), out.join("signed").join(&name));
        fs::copy(compiler.client_for_windows(profile)?, &unsigned)
            .with_context(|| format!("cannot write {}", unsigned.display()))?;
        args.signer.signed(unsigned, signed)
    };
    let files = Files {
        operator: program(image::OPERATOR)?,
        client: program(image::CLIENT)?,
        client_for_windows: (!args.quick).then(client_for_windows).transpose()?,
        wicd: args.signer.signed(compiler.wicd()?, out.join("signed/wicd.exe"))?,
        payload: args.payload.clone(),
        revision: revision.map(Into::into),
        arch: args.arch,
    };
    let images = image::build(&Store::new(&out.join("store"))?, &files, out)?;
    Ok((files, images))
}

fn all(images: &Images) -> impl Iterator<Item = &Built> {
    [&images.operator, &images.slim, &images.payload].into_iter().chain(&images.must_gather)
}

fn digests(images: &Images) -> Vec<&str> {
    all(images).map(|built| built.digest.as_str()).collect()
}

/// Returns the current commit, if there are no uncommitted changes.
fn revision() -> Option<String> {
    let git = |args: &[&str]| devenv::read(Command::new("git").current_dir(workspace_root()).args(args)).ok();
    let changes = git(&["status", "--porcelain"])?;
    git(&["rev-parse", "HEAD"]).filter(|_| changes.is_empty())
}

/// Returns the first 12 characters of a commit hash, a length that does not depend on the clone.
fn short(revision: &str) -> &str {
    revision.get(..12).unwrap_or(revision)
}
