//! Variables in a service's command line: turns the template of the services ConfigMap into the command line for Windows.
//!
//! A value becomes part of a command that runs as SYSTEM, so it must be exactly one plain word. All variables are
//! replaced in one pass over the template: a value is never searched for further variables.

use api::host::Desired;
use api::services::{HostFact, Service};
use serde_json::Value;

/// Maximum length of a value that is put into a command, in bytes.
const MAX_VALUE: usize = 1024;

/// Failure to build the command line of a service.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum VariableError {
    /// The Node is not known yet, and the command needs a value from it.
    #[error("the value of variable {0:?} comes from the Node, which wicd has not received from the API server yet")]
    NoNode(String),
    /// The variable's path is not of the form `{.a.b}`.
    #[error(
        "variable {name:?}: the path {path:?} is not of the form {{.a.b}}; this is a fault of the services ConfigMap, which the operator writes: \
         report it"
    )]
    Path {
        /// Name of the variable.
        name: String,
        /// Path of the variable's value in the Node.
        path: String,
    },
    /// The Node has no value at the variable's path.
    #[error("variable {name:?}: the Node has no value at {path:?} yet")]
    Absent {
        /// Name of the variable.
        name: String,
        /// Path of the variable's value in the Node.
        path: String,
    },
    /// The variable's value is not one plain word.
    #[error("variable {name:?}: its value is not one plain word ({problem}), so that it cannot be part of a command")]
    Value {
        /// Name of the variable.
        name: String,
        /// Problem with the value.
        problem: &'static str,
    },
}

/// Returns the command line of `service` with all its variables replaced.
///
/// `desired` names the Node and its address; `node` is the Node as JSON, if it is known.
///
/// # Errors
/// [`VariableError::NoNode`] or [`VariableError::Absent`] while the Node or its value is missing, [`VariableError::Path`] for a
/// path that is not of the form `{.a.b}`, [`VariableError::Value`] for a value that is not one plain word.
pub fn command(service: &Service, desired: &Desired, node: Option<&Value>) -> Result<String, VariableError> {
    let mut values: Vec<(&str, String)> = Vec::new();
    for variable in &service.host_variables_in_command {
        let value = match variable.fact {
            HostFact::NodeName => &desired.node_name,
            HostFact::NodeIp => &desired.node_ip,
        };
        values.push((&variable.name, checked(&variable.name, value.clone())?));
    }
    for variable in &service.node_variables_in_command {
        let value = look_up(&variable.name, &variable.node_object_json_path, node)?;
        values.push((&variable.name, checked(&variable.name, value)?));
    }
    // The longest name comes first, so that NODE_NAME does not replace the beginning of NODE_NAME_SHORT.
    values.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    Ok(replace(&service.path, &values))
}

fn replace(template: &str, values: &[(&str, String)]) -> String {
    let mut line = String::with_capacity(template.len());
    let mut rest = template;
    'next: while let Some(c) = rest.chars().next() {
        for (name, value) in values {
            if let Some(after) = rest.strip_prefix(name).filter(|_| !name.is_empty()) {
                line.push_str(value);
                rest = after;
                continue 'next;
            }
        }
        line.push(c);
        rest = &rest[c.len_utf8()..];
    }
    line
}

fn checked(name: &str, value: String) -> Result<String, VariableError> {
    let problem = if value.is_empty() {
        "it is empty"
    } else if value.len() > MAX_VALUE {
        "it is longer than 1024 bytes"
    } else if value.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "it has white space or a control character in it"
    } else if value.contains(['"', '\'', '`']) {
        "it has a quote in it"
    } else {
        return Ok(value);
    };
    Err(VariableError::Value { name: name.into(), problem })
}

/// Evaluates a path: text outside of braces is literal, `{.a.b\.c}` is looked up in the Node.
fn look_up(name: &str, path: &str, node: Option<&Value>) -> Result<String, VariableError> {
    let bad = || VariableError::Path { name: name.into(), path: path.into() };
    let (mut value, mut rest) = (String::new(), path);
    loop {
        let Some(open) = rest.find(['{', '}']) else {
            value.push_str(rest);
            return Ok(value);
        };
        if !rest[open..].starts_with('{') {
            return Err(bad());
        }
        value.push_str(&rest[..open]);
        let close = rest[open..].find('}').ok_or_else(bad)? + open;
        let fields = fields(&rest[open + 1..close]).ok_or_else(bad)?;
        let node = node.ok_or_else(|| VariableError::NoNode(name.into()))?;
        let found = fields.iter().try_fold(node, |at, field| at.get(field));
        match found {
            Some(Value::String(s)) => value.push_str(s),
            Some(Value::Number(n)) => value.push_str(&n.to_string()),
            Some(Value::Bool(b)) => value.push_str(if *b { "true" } else { "false" }),
            Some(Value::Null) | None => {
                return Err(VariableError::Absent { name: name.into(), path: path.into() });
            }
            Some(Value::Array(_) | Value::Object(_)) => {
                return Err(VariableError::Value { name: name.into(), problem: "it is a list or an object" });
            }
        }
        rest = &rest[close + 1..];
    }
}

/// Returns the fields of a path: `a` and `b.c` for `.a.b\.c`.
fn fields(text: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut chars = text.strip_prefix('.')?.chars();
    let mut field = String::new();
    loop {
        match chars.next() {
            Some('\\') => field.push(chars.next()?),
            // Indices, filters and wildcards could give several values.
            Some('[' | ']' | '*' | '@' | '{') => return None,
            Some('.') => fields.push(std::mem::take(&mut field)),
            Some(c) => field.push(c),
            None => {
                fields.push(field);
                return fields.iter().all(|f| !f.is_empty()).then_some(fields);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::services::{HostVariable, NodeVariable};
    use proptest::prelude::*;
    use serde_json::json;

    fn desired() -> Desired {
        Desired { node_name: "win-1".into(), node_ip: "10.0.0.7".into(), ..Desired::default() }
    }

    fn service(path: &str, node: &[(&str, &str)], host: &[(&str, HostFact)]) -> Service {
        Service {
            name: "x".into(),
            path: path.into(),
            node_variables_in_command: node
                .iter()
                .map(|(n, p)| NodeVariable { name: (*n).into(), node_object_json_path: (*p).into() })
                .collect(),
            host_variables_in_command: host.iter().map(|(n, f)| HostVariable { name: (*n).into(), fact: *f }).collect(),
            ..Service::default()
        }
    }

    #[test]
    fn a_variable_becomes_one_plain_word_of_the_command() {
        let node = json!({"metadata": {"name": "win-1", "annotations": {
            "k8s.ovn.org/subnet": "10.132.0.0/24", "two": "a b", "quote": "a\"b", "lines": "a\nb", "empty": "", "again": "NODE_NAME"}},
            "spec": {"n": 3}});
        let long = |p: &'static str| [("V", p)];
        let cases: &[(&str, Service, Result<&str, &str>)] = &[
            ("none", service(r"C:\k\a.exe --x", &[], &[]), Ok(r"C:\k\a.exe --x")),
            (
                "host",
                service("a NODE NODE_IP", &[], &[("NODE", HostFact::NodeName), ("NODE_IP", HostFact::NodeIp)]),
                Ok("a win-1 10.0.0.7"),
            ),
            ("name", service("a --node V/V", &long("{.metadata.name}"), &[]), Ok("a --node win-1/win-1")),
            (
                "escaped dots",
                service("V", &long(r"{.metadata.annotations.k8s\.ovn\.org/subnet}"), &[]),
                Ok("10.132.0.0/24"),
            ),
            ("literal", service("--config V", &long(r"C:\k\kubeconfig"), &[]), Ok(r"--config C:\k\kubeconfig")),
            ("mixed", service("V", &long("a-{.spec.n}-b"), &[]), Ok("a-3-b")),
            (
                "a value is not a template",
                service(
                    "V NODE_NAME",
                    &[("V", "{.metadata.annotations.again}"), ("NODE_NAME", "{.metadata.name}")],
                    &[],
                ),
                Ok("NODE_NAME win-1"),
            ),
            ("absent", service("V", &long("{.metadata.annotations.nope}"), &[]), Err("no value at")),
            ("two words", service("V", &long("{.metadata.annotations.two}"), &[]), Err("not one plain word")),
            ("quote", service("V", &long("{.metadata.annotations.quote}"), &[]), Err("not one plain word")),
            ("two lines", service("V", &long("{.metadata.annotations.lines}"), &[]), Err("not one plain word")),
            ("empty", service("V", &long("{.metadata.annotations.empty}"), &[]), Err("not one plain word")),
            ("object", service("V", &long("{.metadata}"), &[]), Err("not one plain word")),
            ("filter", service("V", &long("{.status.addresses[0].address}"), &[]), Err("not of the form")),
            ("open brace", service("V", &long("{.metadata"), &[]), Err("not of the form")),
            ("no dot", service("V", &long("{metadata}"), &[]), Err("not of the form")),
        ];
        for (name, service, expected) in cases {
            match (command(service, &desired(), Some(&node)), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, *expected, "{name}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{name}: {error}"),
                (got, _) => panic!("{name}: {got:?}"),
            }
        }
    }

    #[test]
    fn without_a_node_only_node_variables_wait() {
        let literal = service("V", &[("V", "x")], &[]);
        assert_eq!(command(&literal, &desired(), None).as_deref(), Ok("x"));
        let error = command(&service("V", &[("V", "{.metadata.name}")], &[]), &desired(), None).unwrap_err();
        assert_eq!(error, VariableError::NoNode("V".into()));
    }

    proptest! {
        #[test]
        fn any_path_is_read_or_refused(path in r"[{}.\\a-z\[\]]{0,40}", value in ".{0,20}") {
            let node = json!({"a": {"b": value}});
            if let Ok(line) = command(&service("V", &[("V", &path)], &[]), &desired(), Some(&node)) {
                prop_assert!(!line.is_empty() && !line.contains(char::is_whitespace) && !line.contains('"'));
            }
        }
    }
}
