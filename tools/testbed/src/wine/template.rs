//! Wine prefix from which all hosts are copied.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow};

use super::{NAMESPACES, programs, scripts};
use crate::binaries::{Run as _, cache_dir, key, lock, say};

/// Inputs of the template; a new one is created when any of them changes.
const INPUTS: [&str; 10] = [
    include_str!("../../wine/machine.sh"),
    include_str!("../../wine/template.sh"),
    include_str!("../../wine/advapi32.c"),
    include_str!("../../wine/bcryptprimitives.c"),
    include_str!("../../wine/dismapi.c"),
    include_str!("../../wine/iphlpapi.c"),
    include_str!("../../wine/vmcompute.c"),
    include_str!("../../wine/shutdown.c"),
    include_str!("../../wine/list-services.c"),
    include_str!("../../wine/shell.c"),
];

/// Returns the path of the template. Creates it if necessary, which takes about 15 s and 700 MB of disk.
pub(super) fn template() -> Result<PathBuf> {
    let (wine, wineserver) = programs().map_err(|name| anyhow!("there is no {name}"))?;
    let version = Command::new(&wine).arg("--version").read()?;
    let name = format!("wine-{}", key(&[&[version.as_str()], INPUTS.as_slice()].concat()));
    let dir = cache_dir()?.join(&name);
    let prefix = dir.join("prefix");
    if prefix.is_dir() {
        return Ok(prefix);
    }
    let _lock = lock(&cache_dir()?.join(format!(".{name}.lock")))?;
    if !prefix.is_dir() {
        say("making a Wine prefix for Windows hosts (about 15 s, once)");
        let unfinished = cache_dir()?.join(format!(".{name}.new"));
        let _ = fs::remove_dir_all(&unfinished); // remains of an interrupted run
        fs::create_dir_all(&unfinished)?;
        Command::new("unshare")
            .args(NAMESPACES)
            .arg("sh")
            .arg(scripts().join("template.sh"))
            .envs([
                ("DIR", unfinished.as_path()),
                ("SCRIPTS", &scripts()),
                ("WINE", &wine),
                ("WINESERVER", &wineserver),
            ])
            .envs([("NAME", "template"), ("ADDRESS", "127.0.0.1")])
            .run()
            .context("cannot create a Wine prefix")?;
        fs::rename(&unfinished, &dir)?;
    }
    Ok(prefix)
}

/// Copies the template to `to`, with hard links instead of files, except for the registry, so that the copy takes little time and space. Wine and wicd
/// replace files; a write *into* a file of Windows itself would change it for all hosts.
pub(super) fn copy(template: &Path, to: &Path, registry: impl Fn(&str) -> String) -> Result<()> {
    Command::new("cp").args(["-al", "--"]).args([template, to]).run()?;
    for name in ["system.reg", "user.reg", "userdef.reg"] {
        let file = to.join(name);
        // The file is not always UTF-8: Wine does not escape non-ASCII text everywhere.
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        fs::remove_file(&file)?;
        fs::write(&file, registry(&String::from_utf8_lossy(&text)))?;
    }
    Ok(())
}

/// Returns a registry file with the value `name` set to `data` (in the syntax of the file) wherever it occurs.
pub(super) fn with_value(registry: &str, name: &str, data: &str) -> String {
    let start = format!("\"{name}\"=");
    let line = |line: &str| if line.starts_with(&start) { format!("{start}{data}\n") } else { format!("{line}\n") };
    registry.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_and_the_rest_stays() {
        let registry = "[A]\n\"UBR\"=dword:00000001\n\"UBRX\"=\"1\"\n";
        assert_eq!(with_value(registry, "UBR", "dword:00000002"), "[A]\n\"UBR\"=dword:00000002\n\"UBRX\"=\"1\"\n");
    }
}
