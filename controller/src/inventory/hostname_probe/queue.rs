//! Queue of tasks in which pools take turns.
//!
//! A list may have thousands of entries that never answer. Only a few hosts are contacted at a time, even fewer of each pool, and pools take turns,
//! so that no pool delays another. Within a pool, the entries with the fewest failures come first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// Maximum number of running tasks over all pools.
pub(super) const TOTAL: usize = 8;
/// Maximum number of running tasks of one pool.
pub(super) const PER_POOL: usize = 4;

/// Waiting and running tasks of all pools.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: BTreeMap<String, BTreeMap<(u32, u64), T>>,
    running: BTreeMap<String, BTreeSet<T>>,
    /// Number of each pool's last turn. A higher number is more recent.
    turns: BTreeMap<String, u64>,
    count: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), running: BTreeMap::new(), turns: BTreeMap::new(), count: 0 }
    }
}

impl<T: Ord + Clone> Queue<T> {
    /// Reports whether a task is waiting or running.
    pub(super) fn has(&self, pool: &str, task: &T) -> bool {
        self.running.get(pool).is_some_and(|tasks| tasks.contains(task))
            || self.waiting.get(pool).is_some_and(|tasks| tasks.values().any(|t| t == task))
    }

    /// Adds a task with the number of its failures, unless it is already waiting or running.
    pub(super) fn push(&mut self, pool: &str, failures: u32, task: T) {
        if !self.has(pool, &task) {
            self.count += 1;
            self.waiting.entry(pool.to_owned()).or_default().insert((failures, self.count), task);
        }
    }

    /// Drops the waiting tasks of a pool that are no longer needed.
    pub(super) fn retain(&mut self, pool: &str, is_needed: impl Fn(&T) -> bool) {
        if let Some(tasks) = self.waiting.get_mut(pool) {
            tasks.retain(|_, task| is_needed(task));
        }
        self.tidy(pool);
    }

    /// Returns the next task that may start, from the pool whose last turn was longest ago.
    pub(super) fn next(&mut self) -> Option<(String, T)> {
        let under_way = |pool: &str| self.running.get(pool).map_or(0, BTreeSet::len);
        if self.running.values().map(BTreeSet::len).sum::<usize>() >= TOTAL {
            return None;
        }
        let may = |pool: &&String| under_way(pool) < PER_POOL;
        let last = |pool: &&String| self.turns.get(*pool).copied().unwrap_or(0);
        let pool =
            self.waiting.keys().filter(may).max_by_key(|pool| (Reverse(last(pool)), Reverse((*pool).clone())))?;
        let pool = pool.clone();
        let (_, task) = self.waiting.get_mut(&pool)?.pop_first()?;
        self.count += 1;
        self.turns.insert(pool.clone(), self.count);
        self.running.entry(pool.clone()).or_default().insert(task.clone());
        self.tidy(&pool);
        Some((pool, task))
    }

    /// Records that a task has ended.
    pub(super) fn done(&mut self, pool: &str, task: &T) {
        if let Some(tasks) = self.running.get_mut(pool) {
            tasks.remove(task);
        }
        self.tidy(pool);
    }

    fn tidy(&mut self, pool: &str) {
        self.waiting.retain(|_, tasks| !tasks.is_empty());
        self.running.retain(|_, tasks| !tasks.is_empty());
        if !self.waiting.contains_key(pool) && !self.running.contains_key(pool) {
            self.turns.remove(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_thousand_silent_addresses_do_not_delay_the_host_of_another_pool() {
        let mut queue = Queue::default();
        for n in 0..2000 {
            queue.push("silent", 0, n);
        }
        let began: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(began.len(), PER_POOL, "{began:?}");
        queue.push("healthy", 0, 7);
        assert_eq!(queue.next(), Some(("healthy".into(), 7)), "there is room for others");
    }

    #[test]
    fn pools_take_turns_and_tasks_with_the_fewest_failures_come_first() {
        let mut queue = Queue::default();
        for pool in ["a", "b", "c"] {
            for (failures, task) in [(2, 1), (0, 2), (1, 3), (0, 4), (0, 5)] {
                queue.push(pool, failures, task);
            }
        }
        queue.push("a", 0, 2);
        let mut order = Vec::new();
        while let Some((pool, task)) = queue.next() {
            order.push(format!("{pool}{task}"));
        }
        assert_eq!(order.join(" "), "a2 b2 c2 a4 b4 c4 a5 b5", "{TOTAL} at once");
        queue.push("d", 9, 1);
        queue.done("b", &4);
        assert_eq!(queue.next(), Some(("d".into(), 1)), "a pool that had no turn yet is next");
        queue.retain("a", |task| *task == 1);
        for (pool, task) in [("a", 2), ("a", 4), ("a", 5), ("b", 2), ("b", 5), ("c", 2), ("c", 4), ("d", 1)] {
            queue.done(pool, &task);
        }
        let rest: Vec<_> = std::iter::from_fn(|| queue.next()).map(|(pool, task)| format!("{pool}{task}")).collect();
        assert_eq!(rest.join(" "), "c5 a1 b3 c3 b1 c1");
    }

    proptest! {
        #[test]
        fn each_task_starts_once_and_no_limit_is_exceeded(pushes in proptest::collection::vec((0_u8..5, 0_u32..3, 0_u16..400), 0..300)) {
            let mut queue = Queue::default();
            for (pool, failures, task) in &pushes {
                queue.push(&pool.to_string(), *failures, *task);
            }
            let expected: BTreeSet<_> = pushes.iter().map(|(pool, _, task)| (pool.to_string(), *task)).collect();
            let (mut seen, mut running) = (BTreeSet::new(), Vec::new());
            loop {
                while let Some(next) = queue.next() {
                    prop_assert!(seen.insert(next.clone()), "twice");
                    running.push(next);
                }
                prop_assert!(running.len() <= TOTAL);
                for pool in 0..5 {
                    prop_assert!(running.iter().filter(|(p, _)| *p == pool.to_string()).count() <= PER_POOL);
                }
                let Some((pool, task)) = running.pop() else { break };
                queue.done(&pool, &task);
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
