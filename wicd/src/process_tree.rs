//! Which processes belong together. kube-log-runner has the program that it runs as a child, which lives on if its parent alone is ended.

/// A process, and the one that started it. The id of one that has ended is given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parentage {
    /// Its id.
    pub id: u32,
    /// Id that its parent had.
    pub parent: u32,
}

/// Ids of all that `root` has started, and of what they have started. `started` is the time at which a process began, in any unit, and `None` if it
/// has ended: who began before its parent is the child of an earlier process with that id.
pub fn descendants(all: &[Parentage], root: u32, started: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let Some(since) = started(parent) else { continue };
        for process in all.iter().filter(|p| p.parent == parent) {
            if !found.contains(&process.id) && started(process.id).is_some_and(|at| at >= since) {
                found.push(process.id);
            }
        }
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_what_a_process_and_its_children_have_started() {
        let parentage = |pairs: &[(u32, u32)]| -> Vec<Parentage> {
            pairs.iter().map(|&(id, parent)| Parentage { id, parent }).collect()
        };
        // A process begins at the time that is ten times its id, unless it is said otherwise.
        type Started = fn(u32) -> Option<u64>;
        let usual: Started = |id| Some(u64::from(id) * 10);
        let cases: [(&str, &[(u32, u32)], Started, &[u32]); 7] = [
            ("no child", &[(1, 0), (2, 1)], usual, &[]),
            ("a child", &[(1, 0), (2, 1), (3, 2)], usual, &[3]),
            ("children of children", &[(2, 1), (3, 2), (4, 3), (5, 2)], usual, &[3, 5, 4]),
            ("another's child", &[(2, 1), (3, 2), (5, 4)], usual, &[3]),
            ("its own parent, as process 0 is", &[(2, 2)], usual, &[]),
            ("in a circle", &[(2, 3), (3, 2)], usual, &[3]),
            (
                "a child of one that had this id before",
                &[(2, 1), (3, 2), (4, 2)],
                |id| if id == 3 { Some(1) } else { Some(20) },
                &[4],
            ),
        ];
        for (about, pairs, started, expected) in cases {
            assert_eq!(descendants(&parentage(pairs), 2, started), expected, "{about}");
        }
        assert!(descendants(&parentage(&[(3, 2)]), 2, |_| None).is_empty(), "all have ended");
    }
}
