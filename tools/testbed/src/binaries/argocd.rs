//! Runs the scripts of an Argo CD customization on objects, as Argo CD does (`tools/testbed/argocd`).

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Module;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: String,
}

/// Runs a script on each object, and returns the tables that the script returns.
///
/// # Errors
/// Fails when the program cannot be built, or a script fails.
pub fn run_lua(script: &str, objects: &[Value]) -> Result<Vec<Value>> {
    let program =
        Module::new("tools/testbed/argocd", &["main.go"])?.program("argocd", "argocd", &["."], "half a minute")?;
    let mut program = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = program.stdin.take().context("no input")?;
    let requests: Vec<String> =
        objects.iter().map(|object| json!({"script": script, "object": object}).to_string()).collect();
    // A thread writes the requests: the pipe of the answers may be full before the program has read everything.
    let writer = std::thread::spawn(move || requests.iter().try_for_each(|text| input.write_all(text.as_bytes())));
    let output = program.wait_with_output()?;
    writer.join().ok().context("a panic")??;
    ensure!(output.status.success(), "the program that runs Lua failed: {}", output.status);
    let answers: Vec<Answer> =
        serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect::<Result<_, _>>()?;
    ensure!(answers.len() == objects.len(), "{} answers to {} objects", answers.len(), objects.len());
    let result = |answer: Answer| if answer.error.is_empty() { Ok(answer.result) } else { Err(anyhow!(answer.error)) };
    answers.into_iter().map(result).collect()
}
