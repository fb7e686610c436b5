//! Tests of the memory that readers of untrusted text allocate. Each reader gets texts of one size and of twice that size, and its allocations are
//! compared: a few lines of nested YAML aliases must not exhaust the operator's memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Allocator that counts the bytes that each thread allocates.
struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does all the work.
#[expect(unsafe_code, reason = "allocators are unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get().wrapping_add(layout.size())));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Returns the number of bytes that a call allocates.
fn allocated(call: impl FnOnce()) -> usize {
    let before = BYTES.get();
    call();
    BYTES.get().wrapping_sub(before)
}

/// Returns nested YAML aliases, in which each line repeats the previous one ten times.
fn bomb(lines: usize) -> String {
    let line = |n: usize| match n {
        0 => "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(),
        n => format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(",")),
    };
    (0..lines).map(line).collect()
}

/// Returns YAML in which aliases repeat one long text.
fn echo(times: usize) -> String {
    format!("a: &a {}\nb: [{}]\n", "x".repeat(10_000), vec!["*a"; times].join(","))
}

fn list(entries: usize) -> String {
    (0..entries)
        .map(|n| format!("- name: win-{n}\n  address: 10.0.{}.{}\n", n / 250, n % 250))
        .collect::<Vec<_>>()
        .concat()
}

fn mirrors(entries: usize) -> String {
    let entries = (0..entries).map(|n| format!("- source: r{n}.example.com\n  mirrors: [m.example.com]\n"));
    format!("imageDigestMirrors:\n{}", entries.collect::<String>())
}

fn brackets(depth: usize) -> String {
    "[".repeat(depth)
}

fn json(entries: usize) -> String {
    format!(
        "{{\"auths\": {{{}}}}}",
        (0..entries).map(|n| format!("\"r{n}\": {{\"auth\": \"YTpi\"}}")).collect::<Vec<_>>().join(",")
    )
}

fn lines(count: usize) -> String {
    (0..count)
        .map(|n| format!("10.0.0.1 ssh-ed25519 {n} token=x password: {{a: &b [c]}} <Password>\n"))
        .collect::<Vec<_>>()
        .concat()
}

type Reader = (&'static str, fn(&str));

fn readers() -> Vec<Reader> {
    vec![
        ("hosts in a file", |text| {
            let file = |path: &str| gitops::File { path: path.into(), bytes: text.as_bytes().to_vec() };
            drop(gitops::hosts::read(&[file("a.yaml")]));
        }),
        ("hosts in a ConfigMap", |text| {
            drop(gitops::hosts::windows_instances(&[("10.0.0.1".to_owned(), text.as_bytes().to_vec())].into()));
        }),
        ("image-mirrors", |text| drop(crate::cluster::images::mirror_lists(text))),
        ("pools of a file", |text| crate::commands::plan::read_pools(text)),
        ("pull-secret", |text| drop(wnp_core::render::PullSecret::parse(text.as_bytes(), "1"))),
        ("known_hosts", |text| {
            drop(gitops::known_hosts::known_hosts(text, "10.0.0.1", 22, |key| Some(key.to_owned())));
        }),
        ("support data", |text| drop(crate::commands::gather::redacted(text))),
    ]
}

#[test]
fn allocations_grow_no_faster_than_the_text() {
    type Text = (&'static str, fn(usize) -> String, usize);
    let texts: [Text; 7] = [
        ("nested aliases", bomb, 20),
        ("a text and its aliases", echo, 1000),
        ("hosts", list, 500),
        ("mirrors", mirrors, 500),
        ("brackets", brackets, 2000),
        ("JSON", json, 500),
        ("lines", lines, 500),
    ];
    for (reader, read) in readers() {
        for (about, text, size) in texts {
            let [small, large] = [size, 2 * size].map(|size| {
                let text = text(size);
                (text.len(), allocated(|| read(&text)))
            });
            // A text that is refused for its size may cost as much as the largest accepted one.
            let most = small.1 * large.0.div_ceil(small.0) * 3 / 2 + (1 << 20);
            assert!(large.1 <= most, "{reader}, {about}: {small:?} {large:?}");
            assert!(large.1 < 1 << 30, "{reader}, {about}: {large:?}");
        }
    }
}
