//! Access lists of files and directories: rights of users, as Windows stores them.

/// Access to a file or a directory tree for users other than SYSTEM and Administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No access for other users.
    Private,
    /// No access for other users, while a directory is being taken over: its content may still belong to another owner.
    TakingOver,
    /// Read access for the group Users.
    Readable,
    /// Read access for the group Users, and the right of authenticated users to change the content, as below `C:\`.
    Volumes,
}

/// SID of SYSTEM.
pub const SYSTEM: &str = "S-1-5-18";
/// SID of the group Administrators.
pub const ADMINISTRATORS: &str = "S-1-5-32-544";
/// SIDs of users who are administrators on each host: SYSTEM, the group Administrators, TrustedInstaller.
pub const TRUSTED: [&str; 3] =
    [SYSTEM, ADMINISTRATORS, "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"];
/// SID of the group Everyone.
pub const EVERYONE: &str = "S-1-1-0";
const USERS: &str = "S-1-5-32-545";
const AUTHENTICATED_USERS: &str = "S-1-5-11";

/// All rights to a file or directory.
pub const ALL: u32 = 0x001f_01ff;
/// Rights to read, to list and to execute, without any right to change something.
const READ: u32 = 0x0012_00a9;
/// Rights to read, change and delete, but not to delete the content of a directory or to change the access list.
const MODIFY: u32 = 0x0013_01bf;
/// Rights to change the directory itself in any way: its entries, name, owner or access list.
pub const CHANGE: u32 = !(READ | READ_ANY);
/// Rights to replace a directory: to delete or rename it or its content, or to obtain the right to do so.
pub const REPLACE: u32 = 0x0001_0000 | 0x40 | 0x0004_0000 | 0x0008_0000 | 0x1000_0000;
/// Right to read the access list.
const READ_LIST: u32 = 0x0002_0000;
/// Generic rights to read and to execute, which apply to all kinds of objects.
const READ_ANY: u32 = 0xa000_0000;

/// Flag of an entry that files inherit.
const TO_FILES: u8 = 0x1;
/// Flag of an entry that directories inherit.
const TO_DIRECTORIES: u8 = 0x2;
/// Flags of an entry that files and directories inherit.
pub const TO_ALL: u8 = TO_FILES | TO_DIRECTORIES;
/// Flag of an entry that applies only to the content of a directory.
const ONLY_BELOW: u8 = 0x8;
/// Flag of an entry that was inherited from the parent directory.
const INHERITED: u8 = 0x10;

/// Reports whether a SID is always an administrator's: one of [`TRUSTED`], or the built-in Administrator, whatever its name.
pub fn is_trusted(sid: &str) -> bool {
    let built_in = sid.strip_prefix("S-1-5-21-").and_then(|rest| rest.strip_suffix("-500"));
    TRUSTED.contains(&sid)
        || built_in.is_some_and(|machine| machine.split('-').filter(|n| n.parse::<u32>().is_ok()).count() == 3)
}

/// Access list of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AccessList {
    /// True if the list inherits no entries from the parent directory.
    pub is_protected: bool,
    /// Entries, in the order in which Windows evaluates them.
    pub entries: Vec<Entry>,
}

/// Entry of an access list: rights that are granted or denied to a user or group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// SID of the user or group. Empty for an entry of an unknown kind.
    pub sid: String,
    /// Rights, as a bit mask.
    pub rights: u32,
    /// Inheritance flags, as Windows stores them.
    pub flags: u8,
    /// True if the entry denies the rights.
    pub denies: bool,
}

impl Entry {
    /// Creates an entry that grants rights.
    pub fn grant(sid: impl Into<String>, rights: u32, flags: u8) -> Self {
        Self { sid: sid.into(), rights, flags, denies: false }
    }

    /// Reports whether the entry grants one of these rights to the directory itself.
    fn grants(&self, rights: u32) -> bool {
        !self.denies && self.flags & ONLY_BELOW == 0 && self.rights & rights != 0
    }

    /// Splits the entry so that it no longer grants these rights to the directory itself, but still to its content.
    fn without(self, rights: u32) -> Vec<Self> {
        if !self.grants(rights) {
            return vec![self];
        }
        let here = Self { rights: self.rights & !rights, flags: 0, ..self.clone() };
        let below = Self { flags: self.flags | ONLY_BELOW, ..self };
        let goes_on = below.flags & TO_ALL != 0;
        (here.rights != 0).then_some(here).into_iter().chain(goes_on.then_some(below)).collect()
    }

    fn text(&self) -> String {
        const NAMES: [(u8, &str); 4] = [(TO_FILES, "OI"), (TO_DIRECTORIES, "CI"), (0x4, "NP"), (ONLY_BELOW, "IO")];
        let kind = if self.denies { "D" } else { "A" };
        let flags: String = NAMES.iter().filter(|(flag, _)| self.flags & flag != 0).map(|(_, name)| *name).collect();
        format!("({kind};{flags};{:#x};;;{})", self.rights, self.sid)
    }
}

impl AccessList {
    /// Access list of a directory with this guard.
    pub fn of(guard: Guard) -> Self {
        let mut entries = administrators().to_vec();
        match guard {
            Guard::Private => {}
            // This entry only marks the directory: Administrators have the right already.
            Guard::TakingOver => entries.push(Entry::grant(ADMINISTRATORS, READ_LIST, 0)),
            Guard::Readable => entries.push(Entry::grant(USERS, READ, TO_ALL)),
            Guard::Volumes => entries.extend([
                Entry::grant(USERS, READ, TO_ALL),
                Entry::grant(AUTHENTICATED_USERS, MODIFY, TO_ALL | ONLY_BELOW),
            ]),
        }
        Self { is_protected: true, entries }
    }

    /// Default access list of a directory on `C:` of Windows Server: users may create files and directories in it.
    pub fn usual() -> Self {
        let mut entries = administrators().to_vec();
        entries.extend([
            Entry::grant(USERS, READ, TO_ALL),
            Entry::grant(USERS, 0x4, TO_DIRECTORIES),
            Entry::grant(USERS, 0x2, TO_DIRECTORIES),
            Entry::grant("S-1-3-0", 0x1000_0000, TO_ALL | ONLY_BELOW),
        ]);
        for entry in &mut entries {
            entry.flags |= INHERITED;
        }
        Self { is_protected: false, entries }
    }

    /// Reports whether the list is exactly that of a directory with this guard.
    pub fn is(&self, guard: Guard) -> bool {
        let sorted = |list: &Self| {
            let mut entries = list.entries.clone();
            entries.sort();
            entries
        };
        self.is_protected && sorted(self) == sorted(&Self::of(guard))
    }

    /// Reports whether an entry grants an untrusted user one of these rights to the file or directory itself, even if another entry denies the right.
    pub fn grants(&self, is_trusted: impl Fn(&str) -> bool, rights: u32) -> bool {
        self.entries.iter().any(|entry| !is_trusted(&entry.sid) && entry.grants(rights))
    }

    /// Returns the list without these rights of untrusted users to the file or directory itself; `None` if they have none of these rights. Their
    /// rights to the content of a directory stay. Entries of an unknown kind, such as conditional ones, are dropped.
    pub fn narrowed(&self, is_trusted: impl Fn(&str) -> bool, rights: u32) -> Option<Self> {
        if !self.grants(&is_trusted, rights) {
            return None;
        }
        let others = self.entries.iter().filter(|e| !e.sid.is_empty() && ![SYSTEM, ADMINISTRATORS].contains(&&*e.sid));
        let others = others.cloned().map(|entry| Entry { flags: entry.flags & !INHERITED, ..entry });
        let (denied, granted): (Vec<_>, Vec<_>) = others.partition(|entry| entry.denies);
        let narrow = |entry: Entry| if is_trusted(&entry.sid) { vec![entry] } else { entry.without(rights) };
        let granted = granted.into_iter().flat_map(narrow);
        let entries = denied.into_iter().chain(administrators()).chain(granted).collect();
        Some(Self { is_protected: true, entries })
    }

    /// Access list as a security descriptor string (SDDL), with Administrators as the owner.
    pub fn text(&self) -> String {
        let protected = if self.is_protected { "P" } else { "" };
        let entries: String = self.entries.iter().map(Entry::text).collect();
        format!("O:BAD:{protected}{entries}")
    }
}

/// Entries that grant all rights to SYSTEM and Administrators, inherited by all content.
fn administrators() -> [Entry; 2] {
    [SYSTEM, ADMINISTRATORS].map(|sid| Entry::grant(sid, ALL, TO_ALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELETE: u32 = 0x0001_0000;
    const DELETE_CHILD: u32 = 0x40;
    const WRITE_DAC: u32 = 0x0004_0000;

    fn with(entries: &[Entry]) -> AccessList {
        AccessList { is_protected: false, entries: administrators().into_iter().chain(entries.to_vec()).collect() }
    }

    fn is_trusted(sid: &str) -> bool {
        [SYSTEM, ADMINISTRATORS].contains(&sid)
    }

    #[test]
    fn access_lists_are_written_as_windows_reads_them() {
        for (guard, expected) in [
            (Guard::Private, "O:BAD:P(A;OICI;0x1f01ff;;;S-1-5-18)(A;OICI;0x1f01ff;;;S-1-5-32-544)"),
            (
                Guard::Volumes,
                "O:BAD:P(A;OICI;0x1f01ff;;;S-1-5-18)(A;OICI;0x1f01ff;;;S-1-5-32-544)\
                 (A;OICI;0x1200a9;;;S-1-5-32-545)(A;OICIIO;0x1301bf;;;S-1-5-11)",
            ),
        ] {
            assert_eq!(AccessList::of(guard).text(), expected);
        }
        let deny = Entry { denies: true, ..Entry::grant(EVERYONE, DELETE, 0x4 | TO_DIRECTORIES) };
        assert_eq!(AccessList { is_protected: false, entries: vec![deny] }.text(), "O:BAD:(D;CINP;0x10000;;;S-1-1-0)");
    }

    #[test]
    fn only_the_exact_access_list_has_a_guard() {
        let guards = [Guard::Private, Guard::TakingOver, Guard::Readable, Guard::Volumes];
        for guard in guards {
            let list = AccessList::of(guard);
            for other in guards {
                assert_eq!(list.is(other), guard == other, "{guard:?} {other:?}");
            }
            assert!(!AccessList { is_protected: false, ..list.clone() }.is(guard), "it inherits: {guard:?}");
            let mut turned = list.clone();
            turned.entries.reverse();
            assert!(turned.is(guard), "in another order: {guard:?}");
            turned.entries.push(Entry::grant(EVERYONE, READ, 0));
            assert!(!turned.is(guard), "one more: {guard:?}");
        }
        let mut less = AccessList::of(Guard::Private);
        less.entries[0].rights = READ;
        assert!(!less.is(Guard::Private), "SYSTEM may not write");
    }

    #[test]
    fn rights_of_users_to_change_a_directory_itself_are_removed() {
        let users = |rights, flags| Entry::grant(USERS, rights, flags);
        for (about, entry, expected) in [
            ("only reading", users(READ, TO_ALL), None),
            ("what is below", users(ALL, TO_ALL | ONLY_BELOW), None),
            ("a right that is denied", Entry { denies: true, ..users(ALL, TO_ALL) }, None),
            ("an administrator", Entry::grant(ADMINISTRATORS, ALL, 0), None),
            ("making directories", users(0x4, TO_DIRECTORIES), Some(vec![users(0x4, TO_DIRECTORIES | ONLY_BELOW)])),
            ("making files", users(0x2, 0), Some(vec![])),
            ("deleting it", users(DELETE, 0), Some(vec![])),
            ("deleting what is in it", users(DELETE_CHILD | READ, 0), Some(vec![users(READ, 0)])),
            ("changing its access list", users(WRITE_DAC, 0), Some(vec![])),
            (
                "as on other images of Windows",
                Entry::grant(AUTHENTICATED_USERS, MODIFY, TO_ALL | INHERITED),
                Some(vec![
                    Entry::grant(AUTHENTICATED_USERS, READ, 0),
                    Entry::grant(AUTHENTICATED_USERS, MODIFY, TO_ALL | ONLY_BELOW),
                ]),
            ),
            ("all of it, for all users", Entry::grant(EVERYONE, 0x1000_0000, 0), Some(vec![])),
            ("an entry of an unknown kind", Entry::grant("", DELETE, 0), Some(vec![])),
        ] {
            let expected = expected.map(|entries| AccessList { is_protected: true, ..with(&entries) });
            let narrowed = with(&[entry]).narrowed(is_trusted, CHANGE);
            assert_eq!(narrowed, expected, "{about}");
            assert_eq!(narrowed.and_then(|list| list.narrowed(is_trusted, CHANGE)), None, "{about}: once is enough");
        }
    }

    #[test]
    fn entries_that_deny_rights_are_kept() {
        let deny = Entry { denies: true, ..Entry::grant(EVERYONE, DELETE, TO_ALL) };
        let narrowed = with(&[deny.clone(), Entry::grant(USERS, DELETE, 0)]).narrowed(is_trusted, CHANGE).unwrap();
        assert_eq!(narrowed.entries, [vec![deny], administrators().to_vec()].concat());
    }

    /// Windows' own directories, such as `C:\ProgramData`, let users create files and directories.
    #[test]
    fn rights_of_users_to_replace_a_directory_are_removed() {
        assert_eq!(AccessList::usual().narrowed(is_trusted, REPLACE), None);
        let modify = Entry::grant(AUTHENTICATED_USERS, MODIFY, TO_ALL);
        let narrowed = with(&[modify]).narrowed(is_trusted, REPLACE).unwrap();
        assert!(!narrowed.grants(is_trusted, REPLACE) && narrowed.grants(is_trusted, CHANGE));
        for right in [DELETE, DELETE_CHILD, WRITE_DAC, 0x0008_0000, 0x1000_0000] {
            assert!(with(&[Entry::grant(USERS, right, 0)]).grants(is_trusted, REPLACE), "{right:#x}");
        }
    }

    #[test]
    fn default_access_lists_are_narrowed_and_those_of_wicd_stay() {
        for guard in [Guard::Private, Guard::TakingOver, Guard::Readable, Guard::Volumes] {
            assert_eq!(AccessList::of(guard).narrowed(is_trusted, CHANGE), None, "{guard:?}");
        }
        let narrowed = AccessList::usual().narrowed(is_trusted, CHANGE).unwrap();
        assert_eq!(
            narrowed.text(),
            "O:BAD:P(A;OICI;0x1f01ff;;;S-1-5-18)(A;OICI;0x1f01ff;;;S-1-5-32-544)(A;OICI;0x1200a9;;;S-1-5-32-545)\
             (A;CIIO;0x4;;;S-1-5-32-545)(A;CIIO;0x2;;;S-1-5-32-545)(A;OICIIO;0x10000000;;;S-1-3-0)"
        );
    }
}
