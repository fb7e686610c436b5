//! The operator as a process, with a collector of traces.

use anyhow::{Context as _, Result, ensure};
use axum::http::StatusCode;
use opentelemetry_proto::tonic::trace::v1::Span;
use testbed::{
    collector::{Collector, attribute},
    sim::SimOptions,
};

use crate::fleet::{World, spec, status};

#[tokio::test(flavor = "multi_thread")]
async fn a_join_arrives_as_one_trace_with_its_steps() -> Result<()> {
    let collector = Collector::start(StatusCode::OK).await?;
    let world = World::new(SimOptions::default(), &["--otlp-endpoint", &collector.url()]).await?;
    let hosts = world.hosts("win", 1).await?;
    let name = hosts[0].name();
    world.join("factory", &spec(&hosts)).await?;
    let instance = world.until_joined(name).await?;
    let trace = status(&instance).trace_id.context("the status of the instance has no trace")?;

    let of_join = || {
        let all =
            collector.spans().into_iter().filter(|span| attribute(span, "k8s.node.name").as_deref() == Some(name));
        all.partition::<Vec<Span>, _>(|span| span.parent_span_id.is_empty())
    };
    // The root is sent when the operation has ended.
    world.eventually("the trace has its root", || async { !of_join().0.is_empty() }).await?;
    let (roots, mut steps) = of_join();
    // By their ends: the beginning of a step that lasts over several reconciles comes from the status, which has whole seconds.
    steps.sort_by_key(|step| step.end_time_unix_nano);
    ensure!(roots.len() == 1 && roots[0].name == "Provision", "not one join: {roots:?}");
    for span in roots.iter().chain(&steps) {
        ensure!(hex::encode(&span.trace_id) == trace, "not in the trace {trace}: {span:?}");
        ensure!(attribute(span, "windows_node_pool.name").as_deref() == Some("factory"), "{span:?}");
    }
    ensure!(attribute(&roots[0], "windows_node_pool.outcome").as_deref() == Some("succeeded"), "{roots:?}");
    ensure!(
        steps.iter().all(|step| step.parent_span_id == roots[0].span_id),
        "a step is not below the join: {steps:?}"
    );
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    let position = |step: &str| names.iter().position(|name| *name == step);
    let order: Vec<_> = ["Connect", "Upload", "Configure", "Start", "Register"].map(position).into();
    ensure!(order.iter().all(Option::is_some) && order.is_sorted(), "{names:?}");
    let resource = ["service.name", "service.instance.id"].map(|key| collector.resource(key));
    ensure!(resource.iter().all(Option::is_some), "{resource:?}");
    Ok(())
}
