//! Process trees. Windows keeps the ID of a process's parent, but reuses IDs, so that the parent ID may belong to another process by now.

/// Entry in a list of all processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// ID of the process.
    pub id: u32,
    /// ID of the parent process.
    pub parent: u32,
    /// Start time, in units of 100 ns since 1601. 0 if it is unknown.
    pub started: u64,
    /// File name of the program.
    pub program: String,
}

/// Programs that outlive their parent process, with their descendants: containers continue when containerd ends.
const INDEPENDENT: [&str; 1] = ["containerd-shim-runhcs-v1.exe"];

/// Returns the direct and indirect children of `family` that are not in it yet, except containers. A process that is older than its parent was
/// started by an earlier process with the same ID, and is not a child.
pub fn descendants<'a>(all: &'a [Process], family: &[Process]) -> Vec<&'a Process> {
    let is_independent = |p: &Process| INDEPENDENT.iter().any(|name| p.program.eq_ignore_ascii_case(name));
    let is_child = |p: &Process, of: &Process| p.parent == of.id && p.started >= of.started && p.id != of.id;
    let mut found: Vec<&Process> = Vec::new();
    loop {
        let is_new = |p: &&Process| {
            let is_known = family.iter().chain(found.iter().copied()).any(|other| other.id == p.id);
            let has_parent = family.iter().chain(found.iter().copied()).any(|of| is_child(p, of));
            !is_known && has_parent && !is_independent(p)
        };
        let new: Vec<&Process> = all.iter().filter(is_new).collect();
        if new.is_empty() {
            return found;
        }
        found.extend(new);
    }
}

/// Returns the programs in `C:\k` that are words of a service's command line: the first program, and those that it starts.
pub fn programs(command: &str) -> Vec<&str> {
    let words = command.split([' ', '"']).filter(|word| api::payload::is_host_path(word));
    words.filter(|word| word.starts_with(r"C:\k\") && word.to_ascii_lowercase().ends_with(".exe")).collect()
}

/// Returns the processes that `is_meant` selects and whose parent has ended: it is not listed, or its ID belongs to a younger process. A process with
/// an unknown start time counts as the oldest.
pub fn orphans(all: &[Process], is_meant: impl Fn(&Process) -> bool) -> Vec<&Process> {
    let has_parent = |p: &Process| all.iter().any(|of| of.id == p.parent && of.id != p.id && of.started <= p.started);
    all.iter().filter(|p| is_meant(p) && !has_parent(p)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process(id: u32, parent: u32, started: u64) -> Process {
        Process { id, parent, started, program: "x.exe".into() }
    }

    fn ids(all: &[Process], family: &[Process]) -> Vec<u32> {
        descendants(all, family).into_iter().map(|p| p.id).collect()
    }

    #[test]
    fn descendants_are_younger_children_except_containers() {
        let shim = Process { program: "Containerd-Shim-runhcs-v1.exe".into(), ..process(3, 2, 20) };
        for (about, others, expected) in [
            ("no process", vec![], vec![]),
            ("a child", vec![process(2, 1, 20)], vec![2]),
            ("in the same moment", vec![process(2, 1, 10)], vec![2]),
            ("a child of a child, listed first", vec![process(3, 2, 30), process(2, 1, 20)], vec![2, 3]),
            ("a child of another process", vec![process(2, 9, 20)], vec![]),
            ("a child of a process that had this ID before", vec![process(2, 1, 9)], vec![]),
            ("a child of such a child", vec![process(2, 1, 9), process(3, 2, 20)], vec![]),
            ("a child that is older than its parent", vec![process(2, 1, 20), process(3, 2, 19)], vec![2]),
            ("containers", vec![process(2, 1, 20), shim.clone(), process(4, 3, 30)], vec![2]),
            ("a process that is its own parent", vec![process(5, 5, 20)], vec![]),
            ("a circle of IDs", vec![process(2, 3, 20), process(3, 2, 20)], vec![]),
        ] {
            let service = process(1, 0, 10);
            let all: Vec<Process> = std::iter::once(service.clone()).chain(others).collect();
            assert_eq!(ids(&all, &[service]), expected, "{about}");
        }
    }

    #[test]
    fn programs_are_named_in_the_command_line() {
        let runner = r"C:\k\kube-log-runner.exe -log-file=C:\var\log\kubelet\kubelet.log C:\k\kubelet.exe --config=C:\k\kubelet.conf";
        for (command, expected) in [
            (runner, &[r"C:\k\kube-log-runner.exe", r"C:\k\kubelet.exe"][..]),
            (r#""C:\k\csi-proxy.exe" -v=2"#, &[r"C:\k\csi-proxy.exe"]),
            (r"C:\k\x.exe --program=C:\k\y.exe C:\Windows\cmd.exe C:\k\..\z.exe C:\k\config", &[r"C:\k\x.exe"]),
            ("", &[]),
        ] {
            assert_eq!(programs(command), expected, "{command}");
        }
    }

    #[test]
    fn a_process_without_its_parent_is_an_orphan() {
        let named = |p: Process, program: &str| Process { program: program.into(), ..p };
        let kubelet = |id, parent, started| named(process(id, parent, started), "kubelet.exe");
        for (about, others, expected) in [
            ("the runner is there", vec![process(5, 1, 20), kubelet(6, 5, 21)], vec![]),
            ("the runner has ended", vec![kubelet(6, 5, 21)], vec![6]),
            ("another process has the runner's ID now", vec![kubelet(6, 5, 21), process(5, 1, 30)], vec![6]),
            ("the second one has a runner", vec![kubelet(6, 5, 21), process(7, 1, 40), kubelet(8, 7, 41)], vec![6]),
            ("started by a user", vec![process(9, 0, 2), kubelet(6, 9, 21)], vec![]),
            ("the parent's start time is not known", vec![process(5, 1, 0), kubelet(6, 5, 21)], vec![]),
            ("another program", vec![named(process(6, 5, 21), "notepad.exe")], vec![]),
            ("its own parent", vec![kubelet(6, 6, 21)], vec![6]),
        ] {
            let all: Vec<Process> = std::iter::once(process(1, 0, 1)).chain(others).collect();
            let found: Vec<u32> = orphans(&all, |p| p.program == "kubelet.exe").iter().map(|p| p.id).collect();
            assert_eq!(found, expected, "{about}");
        }
    }

    #[test]
    fn known_processes_are_not_found_again() {
        let (service, child, late) = (process(1, 0, 10), process(2, 1, 20), process(3, 2, 30));
        // The child has ended and is no longer listed.
        let all = [service.clone(), late];
        assert_eq!(ids(&all, &[service, child]), [3]);
    }

    proptest! {
        #[test]
        fn descendants_are_younger_and_lead_back_to_the_family(
            all in proptest::collection::vec((0..8u32, 0..8u32, 0..8u64), 0..12),
        ) {
            let mut all: Vec<Process> = all.into_iter().map(|(id, parent, started)| process(id, parent, started)).collect();
            all.sort_by_key(|p| p.id);
            all.dedup_by_key(|p| p.id);
            let Some(root) = all.first().cloned() else { return Ok(()) };
            let found = descendants(&all, std::slice::from_ref(&root));
            for p in &found {
                prop_assert!(p.id != root.id && p.started >= root.started, "{:?} of {:?}", p, root);
                prop_assert!(p.parent == root.id || found.iter().any(|f| f.id == p.parent), "{:?} of {:?}", p, root);
            }
            // All others have no parent among them, or are older than it.
            for p in all.iter().filter(|p| p.id != root.id && !found.iter().any(|f| f.id == p.id)) {
                let parents = found.iter().copied().chain([&root]);
                prop_assert!(parents.into_iter().all(|of| of.id != p.parent || p.started < of.started), "{:?}", p);
            }
        }
    }
}
