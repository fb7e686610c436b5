//! Image for `oc adm must-gather`, which starts commands with bash and copies with tar: a static bash and the applets of a static
//! busybox, both from Debian.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};

use super::{Arch, CLIENT_PROGRAM, WICD, make_folder, place};
use crate::image::Files;

/// Program of Debian's package `bash-static`.
pub const BASH: &str = "/bin/bash-static";
/// Program of Debian's package `busybox-static`.
pub const BUSYBOX: &str = "/bin/busybox";
/// Applets for `oc`, and for users who look around.
const APPLETS: [&str; 17] = [
    "awk", "cat", "df", "du", "find", "grep", "gzip", "kill", "ls", "mkdir", "pkill", "ps", "sed", "sleep", "sync",
    "tail", "tar",
];
/// Script that `oc` starts, with the user's arguments if there are any.
const GATHER: &str = "#!/bin/bash\nexec /usr/local/bin/kubectl-windows_node_pools gather --dest /must-gather \"$@\"\n";

/// Reports whether the image is built for this processor: only for amd64, on a build machine that has both packages.
pub fn is_built(arch: Arch) -> bool {
    arch == Arch::Amd64 && [BASH, BUSYBOX].iter().all(|program| Path::new(program).is_file())
}

/// Copies the files of the image to a folder.
pub(super) fn stage(files: &Files, to: &Path) -> Result<()> {
    for (from, to_name) in
        [(Path::new(BASH), "bin/bash"), (Path::new(BUSYBOX), "bin/busybox"), (&files.client, CLIENT_PROGRAM)]
    {
        let program = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let loader = b"/ld-linux";
        ensure!(
            !program.windows(loader.len()).any(|part| part == loader),
            "{} is not a static program: install bash-static and busybox-static",
            from.display()
        );
        place(&to.join(to_name), &program, 0o755)?;
    }
    place(&to.join(WICD), &fs::read(&files.wicd)?, 0o644)?;
    place(&to.join("usr/bin/gather"), GATHER.as_bytes(), 0o755)?;
    for applet in APPLETS {
        symlink("busybox", to.join("bin").join(applet))?;
    }
    let folder = to.join("must-gather");
    make_folder(&folder)?;
    // Any user may write, as in the volume that Kubernetes mounts there.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    place(&to.join("licenses/LICENSE"), &fs::read(devenv::workspace_root().join("LICENSE"))?, 0o644)?;
    // Third-party programs come with their licences.
    for package in ["bash-static", "busybox-static"] {
        let notice = Path::new("/usr/share/doc").join(package).join("copyright");
        let notice = fs::read(&notice).with_context(|| format!("cannot read {}", notice.display()))?;
        place(&to.join("licenses").join(package), &notice, 0o644)?;
    }
    Ok(())
}
