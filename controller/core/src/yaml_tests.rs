//! Tests of the YAML reader.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn json(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar { text, is_plain: true } => text.clone(),
        Kind::Scalar { text, is_plain: false } => format!("{text:?}"),
        Kind::List(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(",")),
        Kind::Map(members) => {
            let members: Vec<String> = members.iter().map(|m| format!("{}:{}", m.key, json(&m.value))).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

#[test]
fn documents_are_read() {
    for (text, read) in [
        ("a: 1\nb: \"1\"\nc: 'x'\n", "{a:1,b:\"1\",c:\"x\"}"),
        ("- a\n- [b, {c: d}]\n", "[a,[b,{c:d}]]"),
        ("a: &x {n: 1}\nb: *x\n", "{a:{n:1},b:{n:1}}"),
        ("x: &x {n: 1, m: 2}\ny:\n  <<: *x\n  m: 3\n", "{x:{n:1,m:2},y:{m:3,n:1}}"),
        ("- &x {n: 1}\n- &y {n: 2, m: 2}\n- <<: [*x, *y]\n", "[{n:1},{n:2,m:2},{n:1,m:2}]"),
        ("a: !!str 1\n", "{a:\"1\"}"),
        ("a: |\n  b\n", "{a:\"b\\n\"}"),
    ] {
        let (documents, faults) = documents(text);
        assert_eq!((documents.iter().map(json).collect::<Vec<_>>(), faults), (vec![read.to_owned()], vec![]), "{text}");
    }
    assert_eq!(documents("a\n---\nb\n...\n---\n- c\n").0.iter().map(json).collect::<Vec<_>>(), ["a", "b", "[c]"]);
}

#[test]
fn each_value_has_its_line() {
    let (read, _) =
        documents("# a comment\n\nhosts:\n- name: a\n\n- # another\n  name: b\n  labels: {\n    x: y }\n---\n- c\n");
    let Kind::List(hosts) = &read[0].get("hosts").unwrap().kind else { panic!("{read:?}") };
    assert_eq!(hosts.iter().map(|h| h.line).collect::<Vec<_>>(), [4, 7]);
    assert_eq!(hosts[1].get("labels").unwrap().get("x").unwrap().line, 9);
    assert_eq!(read[1].line, 11);
    // The line of an alias is the line where it is used.
    let (read, _) = documents("a: &x\n  n: 1\nb:\n  *x\n");
    assert_eq!(read[0].get("b").unwrap().line, 4);
}

#[test]
fn each_fault_has_its_line_and_message() {
    for (text, line, part) in [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key `a`"),
        ("a:\n\tb: 1\n", 2, "cannot be indented with tabs"),
        ("a: [1\nb: 2\n", 2, "invalid YAML"),
        ("a: !thing 1\n", 1, "a tag"),
        ("a: !thing {}\n", 1, "a tag"),
        ("a: *x\n", 1, "invalid YAML"),
        ("a: &x [*x]\n", 1, "an alias must not be inside"),
        ("? [a]\n: b\n", 1, "a key must be text"),
        ("a:\n  <<: 1\n", 2, "can merge only objects"),
        ("a: \"x\n", 1, "invalid YAML"),
    ] {
        let (_, faults) = documents(text);
        let [(at, message)] = faults.as_slice() else { panic!("{text:?}: {faults:?}") };
        assert!(*at == line && message.contains(part), "{text:?}: {faults:?}");
    }
    let deep = "[".repeat(10_000);
    assert!(documents(&deep).1[0].1.contains("invalid YAML"));
}

#[test]
fn aliases_do_not_fill_the_memory() {
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..40 {
        let items = vec![format!("*a{}", i - 1); 10].join(",");
        writeln!(bomb, "a{i}: &a{i} [{items}]").unwrap();
    }
    let (_, faults) = documents(&bomb);
    assert!(faults[0].1.contains("more than 500000 values"), "{faults:?}");
    let mut chain = "- &a0 {x: y}\n".to_owned();
    for i in 1..200_000 {
        writeln!(chain, "- &a{i} {{x: *a{}}}", i - 1).unwrap();
    }
    let (_, faults) = documents(&chain);
    assert!(faults[0].1.contains("more than 500000 values"), "{faults:?}");
}

#[test]
fn a_long_text_that_is_repeated_counts_by_its_length() {
    let text = |length: usize| format!("a: &a {}\nb: [{}]\n", "x".repeat(length), ["*a"; 1000].join(","));
    assert_eq!(check(&text(1000)), Ok(()));
    assert!(check(&text(100_000)).unwrap_err().1.contains("more than 500000 values"));
    // Other faults are left to the actual reader.
    assert_eq!(check("a: !thing 1\na: [\n"), Ok(()));
}

#[test]
fn a_single_document_becomes_json() {
    let read = |text: &str| document(text).map(|node| node.to_json());
    let json = serde_json::json!({"a": 1, "b": "1", "c": true, "d": null, "e": [1.5, "022"], "f": "0x1f"});
    assert_eq!(read("a: 1\nb: '1'\nc: yes\nd: ~\ne: [1.5, 022]\nf: 0x1f\n"), Ok(json));
    assert_eq!(read("# nothing\n"), Ok(Value::Null));
    assert_eq!(read("a: 1\n---\nb: 2\n").unwrap_err(), (3, "a second document begins: remove it".to_owned()));
    assert_eq!(read("a: 1\na: 2\n").unwrap_err().0, 2);
}

#[test]
fn plain_text_has_its_type() {
    for (text, means) in [
        ("", Meaning::Null),
        ("~", Meaning::Null),
        ("Null", Meaning::Null),
        ("true", Meaning::Bool),
        ("No", Meaning::Bool),
        ("0", Meaning::Int),
        ("-12", Meaning::Int),
        ("0x1F", Meaning::Int),
        ("0o17", Meaning::Int),
        ("1.5", Meaning::Float),
        ("1e3", Meaning::Float),
        (".inf", Meaning::Float),
        ("10.0.0.1", Meaning::Text),
        ("::1", Meaning::Text),
        ("win-1", Meaning::Text),
        ("inf", Meaning::Text),
        ("e3", Meaning::Text),
    ] {
        assert_eq!(meaning(text), means, "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([-a&*!<>{}\\[\\]:,?|#'\" \n\t]|\\PC){0,200}") {
        let lines = text.lines().count().max(1);
        let (documents, faults) = documents(&text);
        prop_assert!(faults.iter().all(|(line, m)| (1..=lines + 1).contains(line) && !m.contains('\n')), "{:?}", faults);
        let _ = documents.iter().map(json).collect::<Vec<_>>();
    }
}
