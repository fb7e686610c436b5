//! Power switches of the hosts, for users: a host is cut off while a file with its name exists.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::world::World;

/// Folder of the switches, with the hosts that are switched off.
pub(super) struct Switches {
    dir: PathBuf,
    off: BTreeSet<String>,
}

impl Switches {
    /// Creates the folder in `parent`.
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let dir = parent.join("off");
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, off: BTreeSet::new() })
    }

    /// Cuts off hosts for which a file has appeared, and lets those come back whose file was removed.
    pub(super) fn follow(&mut self, world: &World) -> Result<()> {
        let wanted: BTreeSet<String> =
            fs::read_dir(&self.dir)?.flatten().filter_map(|f| f.file_name().into_string().ok()).collect();
        let before = std::mem::replace(&mut self.off, wanted.clone());
        for name in wanted.difference(&before) {
            let known = world.switch(name, false)?;
            println!("{name}: {}", if known { "cut off" } else { "the demonstration has no host of this name" });
        }
        for name in before.difference(&wanted) {
            if world.switch(name, true)? {
                println!("{name}: reachable again");
            }
        }
        Ok(())
    }
}
