use super::*;

const ID: &str = "0af7651916cd43dd8448eb211c80319c";

fn subject(trace: TraceId) -> Subject<'static> {
    Subject {
        trace,
        node: "win-1",
        pool: "p",
        operation: "join-1",
        type_: GrantType::Provision,
        version: Some("1.0.0-abc"),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|a| a.key.as_str() == key).map(|a| a.value.to_string())
}

#[test]
fn a_status_may_hold_anything_for_an_id() {
    for (text, is_id) in [
        (ID, true),
        ("", false),
        ("0af7651916cd43dd8448eb211c80319", false),
        ("0af7651916cd43dd8448eb211c80319c00", false),
        ("0AF7651916CD43DD8448EB211C80319C", false),
        ("00000000000000000000000000000000", false),
        ("0af7651916cd43dd8448eb211c80319g", false),
        ("ä", false),
    ] {
        assert_eq!(TraceId::read(text).map(|id| id.to_string()).as_deref(), is_id.then_some(text), "{text}");
    }
    let random = TraceId::random();
    assert_eq!(TraceId::read(&random.to_string()), Some(random));
    assert_ne!(TraceId::random(), random);
}

#[test]
fn each_process_finds_the_same_root() {
    let of = subject(TraceId::read(ID).unwrap());
    let other = subject(TraceId::random());
    let root = operation_span(of, (at(1), at(9)), Outcome::Succeeded);
    let steps = [Step::Connect, Step::Upload].map(|step| step_span(of, step, (at(1), at(2)), Outcome::Succeeded));
    assert_eq!(root.parent_span_id, SpanId::INVALID);
    for step in &steps {
        assert_eq!(step.parent_span_id, root.span_context.span_id());
        assert_eq!(step.span_context.trace_id().to_string(), ID);
        assert!(step.span_context.is_valid() && step.span_context.is_sampled());
    }
    assert_ne!(steps[0].span_context.span_id(), steps[1].span_context.span_id());
    assert_ne!(
        step_span(other, Step::Connect, (at(1), at(2)), Outcome::Aborted).parent_span_id,
        steps[0].parent_span_id
    );
}

#[test]
fn a_span_says_how_it_ended() {
    let of = subject(TraceId::read(ID).unwrap());
    for (how, status, reason, outcome) in [
        (Outcome::Succeeded, Status::Ok, None, "succeeded"),
        (Outcome::Failed("ConnectTimeout"), Status::error("ConnectTimeout"), Some("ConnectTimeout"), "failed"),
        (Outcome::Failed("no\nreason"), Status::error("invalid"), Some("invalid"), "failed"),
        (Outcome::Aborted, Status::Unset, None, "aborted"),
    ] {
        let spans = [operation_span(of, (at(1), at(9)), how), step_span(of, Step::Drain, (at(1), at(9)), how)];
        for span in &spans {
            assert_eq!(span.status, status);
            assert_eq!(attribute(span, "error.type").as_deref(), reason);
            assert_eq!(attribute(span, "k8s.node.name").as_deref(), Some("win-1"));
            assert_eq!(attribute(span, "windows_node_pool.name").as_deref(), Some("p"));
            assert_eq!(attribute(span, "windows_node_pool.operation.id").as_deref(), Some("join-1"));
        }
        let [root, step] = spans;
        assert_eq!((root.name.as_ref(), step.name.as_ref()), ("Provision", "Drain"));
        assert_eq!(attribute(&root, "windows_node_pool.outcome").as_deref(), Some(outcome));
        assert_eq!(attribute(&root, "windows_node_pool.version").as_deref(), Some("1.0.0-abc"));
    }
}

#[test]
fn no_span_ends_before_it_begins() {
    let of = subject(TraceId::read(ID).unwrap());
    for (start, end, expected) in [(1, 9, 9), (5, 5, 5), (9, 1, 9)] {
        let span = step_span(of, Step::Drain, (at(start), at(end)), Outcome::Succeeded);
        assert_eq!((span.start_time, span.end_time), (at(start).into(), at(expected).into()));
    }
}

#[test]
fn text_that_is_no_word_is_left_out() {
    let long = "x".repeat(254);
    for (word, expected) in [
        ("win-1.example.com", "win-1.example.com"),
        ("10.19.0-abc+1", "10.19.0-abc+1"),
        ("", ""),
        ("two words", "invalid"),
        ("a\u{1b}[2J", "invalid"),
        ("\u{202e}", "invalid"),
        (&long, "invalid"),
    ] {
        assert_eq!(text(word), expected);
    }
}
