//! Page of the command `ui`, and the pages of the documentation, in a headless Chromium. Set `UPDATE_TRANSCRIPTS=1` to rewrite the pictures in
//! `docs/guide/pictures/`.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use api::{Host, WindowsInstance, WindowsNodePool, conditions::kind, services_version::DIGITS};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use controller::commands::age::{age, with_ages};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{ControlPlane, ControlPlaneOptions, deployment, sim::SimOptions};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{
    fleet::{LIMIT, World, has, pool_status, spec, spec_with},
    transcripts::root,
};

/// JavaScript expression that is true if the page is wider than its window. A page may clip what overflows, so that its own width proves nothing.
const TOO_WIDE: &str = "(() => { \
    const root = document.documentElement, width = root.clientWidth; \
    const scrolls = (node) => node && !node.matches('main') && \
        (['auto', 'scroll'].includes(getComputedStyle(node).overflowX) || scrolls(node.parentElement)); \
    return root.scrollWidth > width || [...document.querySelectorAll('main, main *')] \
        .some((node) => node.getBoundingClientRect().right > width + 1 && !scrolls(node)); \
})()";

/// Chromium, driven by its WebDriver. Ends only with [`Browser::quit`], and not with the driver.
struct Browser {
    session: String,
    client: reqwest::Client,
    _driver: Child,
}

impl Browser {
    async fn start() -> Result<Self> {
        let port = testbed::free_address()?.port();
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let driver = driver.spawn().context("there is no chromedriver: cargo xtask setup installs it")?;
        // Another test may have installed the provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build()?;
        let server = format!("http://127.0.0.1:{port}");
        let answers = || async { client.get(format!("{server}/status")).send().await.is_ok() };
        testbed::deployment::within(LIMIT, "chromedriver answers", answers).await?;
        let options = json!({"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"]});
        let wanted = json!({"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}});
        let begun = json!({"capabilities": {"alwaysMatch": wanted}});
        let mut browser = Self { session: format!("{server}/session"), client, _driver: driver };
        let session = browser.post("", &begun).await?;
        browser.session += "/";
        browser.session += session["sessionId"].as_str().context("no session")?;
        Ok(browser)
    }

    async fn quit(&self) -> Result<()> {
        self.client.delete(&self.session).send().await?.error_for_status()?;
        Ok(())
    }

    /// Sends a command of the WebDriver protocol, and returns its value.
    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.client.post(format!("{}{path}", self.session)).body(body.to_string()).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{path}: {text}");
        Ok(serde_json::from_str::<Value>(&text)?["value"].take())
    }

    /// Returns the value of a JavaScript expression.
    async fn value(&self, expression: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({"script": format!("return (async () => {expression})()"), "args": []})).await
    }

    async fn text(&self, selector: &str) -> Result<String> {
        let text = self.value(&format!("document.querySelector({})?.innerText ?? ''", json!(selector))).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the text of an element contains `part`.
    async fn until(&self, selector: &str, part: &str) -> Result<()> {
        let has_it = || async { self.text(selector).await.is_ok_and(|text| text.contains(part)) };
        let Err(error) = testbed::deployment::within(LIMIT, part, has_it).await else { return Ok(()) };
        bail!("{error}: {selector} has {:?}, the page {:?}", self.text(selector).await, self.text("body").await)
    }

    /// Sends a command of the Chrome DevTools protocol.
    async fn devtools(&self, command: &str, params: Value) -> Result<Value> {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": params})).await
    }

    /// Takes a picture of the page, and stores it for the documentation if `UPDATE_TRANSCRIPTS` is set.
    async fn picture(&self, name: &str) -> Result<()> {
        let shot = self.devtools("Page.captureScreenshot", json!({"format": "webp", "quality": 80})).await?;
        let picture = STANDARD.decode(shot["data"].as_str().context("no picture")?)?;
        ensure!(picture.starts_with(b"RIFF"), "no picture");
        if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
            let folder = root().join("docs/guide/pictures");
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join(format!("{name}.webp")), picture)?;
        }
        Ok(())
    }

    async fn becomes_a_phone(&self) -> Result<()> {
        let phone = json!({"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": true});
        self.devtools("Emulation.setDeviceMetricsOverride", phone).await.map(drop)
    }

    /// Reports whether the page can be scrolled sideways, or a part of it is cut off at the side. Elements with a scroll bar of their own may be
    /// wider.
    async fn is_too_wide(&self) -> Result<bool> {
        self.value(TOO_WIDE).await?.as_bool().context("no answer")
    }

    async fn theme(&self, scheme: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await.map(drop)
    }
}

/// Returns the kubeconfig of a user with the ClusterRole `view`, to which the component `view-roles` adds the right to read pools and instances.
async fn reader(control_plane: &ControlPlane) -> Result<PathBuf> {
    control_plane.apply_file(&root().join("deploy/components/view-roles/roles.yaml")).await?;
    let bind = ["create", "clusterrolebinding", "reader", "--clusterrole=view", "--user=reader"];
    ensure!(control_plane.kubectl(&bind).await?.status.success(), "the reader gets no role");
    let may_read = ["auth", "can-i", "watch", "windowsinstances", "--as=reader"];
    let is_in_force = || async { control_plane.kubectl(&may_read).await.is_ok_and(|output| output.status.success()) };
    deployment::within(LIMIT, "the reader may read", is_in_force).await?;
    control_plane.kubeconfig_as("reader", &[])
}

/// Starts the command, and returns it with the URL that it prints.
async fn ui(kubeconfig: &Path) -> Result<(Child, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .arg("ui")
        .env("KUBECONFIG", kubeconfig)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let printed = BufReader::new(child.stdout.take().context("it has no output")?).lines().next_line().await?;
    let printed = printed.context("it prints nothing")?;
    let url = printed.split(' ').next().context("it prints no URL")?.to_owned();
    Ok((child, url))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_what_happens_and_what_waits_for_a_person() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    let steps = json!({"rollout": {"steps": [{"nodes": 1, "approval": true}]}});
    let hosts = world.hosts("press", 6).await?;
    world.join("assembly", &spec_with(&hosts, steps.clone())).await?;
    world.join("office", &spec(&world.hosts("desk", 3).await?)).await?;
    let mut yard = spec(&world.hosts("gate", 1).await?);
    let closed = Host { name: "gate-1".into(), address: "127.9.9.9".into(), port: Some(2299), ..Host::default() };
    yard.inventory.hosts.get_or_insert_default().push(closed);
    world.apply("yard", &yard).await?;
    world.until_failed("gate-1", "Unreachable").await?;
    let mut changed = steps;
    changed["template"] = json!({"spec": {"containerd": {"maxConcurrentDownloads": 6}}});
    world.apply("assembly", &spec_with(&hosts, changed)).await?;
    let waits = |p: &_| has(&pool_status(p).conditions, kind::READY, "Unknown", "WaitingForApproval");
    world.until("assembly", "it waits for an approval", waits).await?;

    let (command, url) = ui(&reader(&world.control_plane).await?).await?;
    let browser = Browser::start().await?;
    let shown = shows(&world, &browser, command, &url).await;
    browser.quit().await?;
    shown
}

async fn shows(world: &World, browser: &Browser, mut command: Child, url: &str) -> Result<()> {
    browser.post("/url", &json!({"url": url})).await?;
    browser.until("#link", "live").await?;
    // Pending approvals are at the top, with a command to copy. The first pool is the one in the worst state.
    let version = pool_status(&world.pool("assembly").await?).desired_version.context("no version")?;
    // The short form of a version has the release, and the beginning of the digest.
    let short = &version[..version.len() - DIGITS + 8];
    let approve = format!("kubectl windows-node-pools approve assembly --version {short}");
    browser.until("#asks", &approve).await?;
    browser.until("#asks", "(containerd's settings)").await?;
    browser.until("#pools article:first-child", "yard").await?;
    browser.until("#pools article:first-child .counts", "1 failed").await?;
    browser.until("#pools article:nth-child(2) .counts", "5 waiting").await?;
    ensure!(browser.value("document.querySelector('#warnings').hidden").await? == true, "something cannot be read");
    browser.theme("light").await?;
    browser.picture("ui").await?;

    // The keyboard alone shows the hosts of a pool, the worst first, and the events of one host.
    browser.value("document.querySelector('#pools summary').focus()").await?;
    let press = async |key: &str| {
        let down = json!({"type": "key", "id": "keyboard", "actions": [
            {"type": "keyDown", "value": key}, {"type": "keyUp", "value": key},
        ]});
        browser.post("/actions", &json!({"actions": [down]})).await
    };
    press("\u{e007}").await?;
    browser.until("#pools tbody tr:first-child", "127.9.9.9 port 2299 refuses connections").await?;
    browser.until("#pools tbody tr:first-child a", "Unreachable").await?;
    let explanation = "(await (await fetch(document.querySelector('#pools tbody a').href)).text())";
    let explanation = browser.value(explanation).await?;
    ensure!(explanation.as_str().is_some_and(|text| text.starts_with("Unreachable: ")), "{explanation}");
    press("\u{e004}").await?;
    press("\u{e007}").await?;
    browser.until(".facts", "ago, JoinFailed: Unreachable").await?;
    browser.theme("dark").await?;
    browser.picture("ui-host").await?;

    // Ages are the same as in the output of the command `status`.
    let now = Timestamp::now();
    for seconds in
        [-5, 0, 90, 120, 190, 599, 600, 10_799, 11_520, 28_800, 172_799, 176_400, 691_200, 63_158_400, 252_288_000]
    {
        let at = now - SignedDuration::from_secs(seconds);
        let expression = format!("(await import('./app.js')).age('{at}', Date.parse('{now}'))");
        let expected = if seconds < 0 { age(now, at) } else { age(at, now) };
        ensure!(browser.value(&expression).await? == json!(expected), "{expression}: not {expected}");
    }
    for message in [
        "h0 since 2026-01-15T01:55:00Z, being repaired",
        "(failed once; next try 2126-01-15T02:00:40Z)",
        "opens at 2026-01-15T01:55:00Z",
        "its repair begins at 2126-01-15T01:55:00Z; begins at 2026-01-15T01:55:00Z",
    ] {
        let expression = format!("(await import('./app.js')).withAges('{message}', Date.parse('{now}'))");
        ensure!(browser.value(&expression).await? == json!(with_ages(message, now)), "{message}");
    }

    // The page updates without a reload, and keeps the focus.
    browser.value("document.querySelector('#pools').dataset.same = 'yes'").await?;
    let args = approve.split(' ').skip(2);
    let mut approved = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"));
    approved
        .args(args)
        .arg("--yes")
        .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-person", &["system:masters"])?);
    ensure!(approved.output().await?.status.success(), "the copied command fails");
    browser.until("#pools", &format!("version {short}: ")).await?;
    browser.until("#pools article:nth-child(2) .counts", "6 done").await?;
    ensure!(browser.value("document.querySelector('#pools').dataset.same").await? == "yes", "it was loaded again");
    ensure!(browser.value("document.activeElement.textContent").await? == "gate-1", "the focus is lost");
    ensure!(browser.value("document.querySelector('#asks').hidden").await? == true, "something still waits");

    browser.becomes_a_phone().await?;
    ensure!(!browser.is_too_wide().await?, "it is wider than a phone");

    // Nothing was refused by the content security policy, and nothing failed.
    let log = browser.post("/se/log", &json!({"type": "browser"})).await?;
    ensure!(log == json!([]), "{log}");

    // Requests are refused under another host name (DNS rebinding), without the secret in the URL, and with more selectors than the name.
    let at = url.trim_start_matches("http://").split('/').next().context("no port")?;
    for (host, path, expected) in [
        (at, format!("{url}live"), 200),
        ("rebound.example.com", format!("{url}live"), 421),
        (at, format!("http://{at}/live"), 404),
        (at, format!("http://{at}/"), 404),
        (at, format!("{url}events/gate-1,involvedObject.kind=Secret"), 400),
    ] {
        let answer = browser.client.get(&path).header("host", host).send().await?;
        ensure!(answer.status() == expected, "{path} for {host}: {}", answer.status());
    }
    command.start_kill()?;
    browser.until("#link", "what is shown may be out of date").await
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_site_fit_a_phone() -> Result<()> {
    let mut pages = Vec::new();
    let mut folders = vec![root().join("target/site")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            return testbed::skip("there is no target/site: cargo xtask docs builds it");
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                pages.push(path);
            }
        }
    }
    // The page for printers contains all others, and the table of contents is the menu of browsers without scripts.
    pages.retain(|page| !["print.html", "toc.html"].iter().any(|other| page.ends_with(other)));
    ensure!(pages.len() > 25, "only {pages:?} are there");
    let browser = Browser::start().await?;
    let fit = fit_a_phone(&browser, &pages).await;
    browser.quit().await?;
    fit
}

async fn fit_a_phone(browser: &Browser, pages: &[PathBuf]) -> Result<()> {
    browser.becomes_a_phone().await?;
    let mut wide = Vec::new();
    for page in pages {
        browser.post("/url", &json!({"url": format!("file://{}", page.display())})).await?;
        if browser.is_too_wide().await? {
            wide.push(page);
        }
    }
    ensure!(wide.is_empty(), "these are wider than a phone: {wide:?}");
    let table = "document.querySelector('main').insertAdjacentHTML('beforeend', '<div style=\"width: 999px\">x</div>')";
    browser.value(table).await?;
    ensure!(browser.is_too_wide().await?, "a page that is too wide is not found");
    Ok(())
}

/// Number of hosts of a large fleet.
const FLEET: usize = 5_000;
/// Number of pools of the large fleet.
const POOLS: usize = 10;
/// Maximum number of elements of the page: the cards of the pools, and one page of hosts for each, whatever the number of hosts.
const ELEMENTS: u64 = 6_000;
/// JavaScript expression that records which rows of hosts are drawn from now on, and the durations of long tasks.
const WATCH: &str = "(window.drawn = new Set(), window.tasks = [], \
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((task) => task.duration))).observe({type: 'longtask'}), \
    new MutationObserver((all) => all.forEach(({target, addedNodes}) => [target, ...addedNodes].forEach((node) => { \
        const row = (node.closest ? node : node.parentElement)?.closest('tr'); \
        if (row) window.drawn.add(row.dataset.key); \
    }))).observe(document.querySelector('#pools'), {subtree: true, childList: true, characterData: true, attributes: true}))";

/// Creates the pools and instances of a large fleet, without an operator.
async fn large_fleet(control_plane: &ControlPlane) -> Result<Api<WindowsInstance>> {
    deployment::install(control_plane).await?;
    let client = deployment::operator_client(control_plane).await?;
    let (pools, instances): (Api<WindowsNodePool>, Api<WindowsInstance>) =
        (Api::all(control_plane.client().await?), Api::all(client));
    for n in 0..POOLS {
        let pool = WindowsNodePool::new(&format!("pool-{n}"), spec(&[]));
        pools.create(&PostParams::default(), &pool).await?;
    }
    let create = async |n: usize| {
        let name = format!("win-{n:04}");
        let host = json!({"name": name, "address": format!("10.0.{}.{}", n / 250, n % 250 + 1), "port": 22,
            "username": "Administrator", "privateKeys": []});
        let object = json!({"apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsInstance",
            "metadata": {"name": name}, "spec": {"poolRef": {"name": format!("pool-{}", n % POOLS)}, "host": host}});
        instances.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        set(&instances, &name, "Ready").await
    };
    stream::iter((0..FLEET).map(create)).buffer_unordered(32).try_collect::<()>().await?;
    Ok(instances)
}

/// Sets the phase of an instance, with a condition Ready that fits.
async fn set(instances: &Api<WindowsInstance>, host: &str, phase: &str) -> Result<()> {
    let (status, message) =
        if phase == "Ready" { ("True", "kubelet is posting ready status") } else { ("False", "no answer") };
    let ready = json!({"type": "Ready", "status": status, "reason": phase, "message": message,
        "lastTransitionTime": "2026-01-15T01:55:00Z"});
    let version = format!("1.0.0-{}", "5c".repeat(DIGITS / 2));
    let status = json!({"status": {"phase": phase, "currentVersion": version, "conditions": [ready]}});
    instances.patch_status(host, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "creates thousands of objects: it runs by night"]
async fn a_large_fleet_loads_a_page_of_hosts_and_updates_changed_hosts_only() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    let instances = large_fleet(&control_plane).await?;
    let begin = Instant::now();
    let (command, url) = ui(&control_plane.kubeconfig()).await?;
    println!("{FLEET} hosts: the command serves after {:.1?}", begin.elapsed());
    let browser = Browser::start().await?;
    let stays = stays_small(&instances, &browser, &command, &url).await;
    browser.quit().await?;
    stays
}

async fn stays_small(instances: &Api<WindowsInstance>, browser: &Browser, command: &Child, url: &str) -> Result<()> {
    let mut live = browser.client.get(format!("{url}live")).send().await?;
    let whole = message(&mut live).await?;
    println!("the first message has {} KiB", whole.to_string().len() / 1024);
    ensure!(whole["set"].as_object().context("no objects")?.len() == FLEET + POOLS + 1, "hosts are missing");

    let begin = Instant::now();
    browser.post("/url", &json!({"url": url})).await?;
    browser.until("#pools article:last-child .counts", &format!("{} done", FLEET / POOLS)).await?;
    println!("the page shows them after {:.1?}", begin.elapsed());
    let elements = async || -> Result<u64> {
        browser.value("document.getElementsByTagName('*').length").await?.as_u64().context("no number")
    };
    println!("folded, it has {} elements", elements().await?);
    // Each pool is unfolded by a click, which shows its first page of hosts.
    let begin = Instant::now();
    browser.value("document.querySelectorAll('#pools summary').forEach((summary) => summary.click())").await?;
    browser.until("#pools article:last-child tbody", "win-").await?;
    let unfolded = elements().await?;
    println!("unfolded, it has {unfolded} elements after {:.1?}", begin.elapsed());

    // A host fails: it moves to the top of its pool, and no other host is sent or drawn again.
    browser.value(WATCH).await?;
    let begin = Instant::now();
    set(instances, "win-4321", "Failed").await?;
    browser.until("#pools article:nth-child(2) tbody tr:first-child", "win-4321").await?;
    println!(
        "an update shows after {:.1?}; the longest task of the page takes {} ms",
        begin.elapsed(),
        browser.value("Math.max(0, ...window.tasks)").await?
    );
    let update = message(&mut live).await?;
    println!("it has {} B: {update}", update.to_string().len());
    let sent: Vec<&String> = update["set"].as_object().context("no objects")?.keys().collect();
    ensure!(update["whole"] == false && sent == ["host/win-4321"], "{update}");
    let drawn = browser.value("[...window.drawn]").await?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", command.id().context("it has ended")?))?;
    let memory = status.lines().filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"));
    let heap = browser.value("performance.memory.usedJSHeapSize").await?;
    println!("memory of the page: {heap} B; of the command: {}", memory.collect::<Vec<_>>().join(", "));
    ensure!(unfolded < ELEMENTS && drawn == json!(["win-4321"]), "{unfolded} elements, drawn anew: {drawn}");
    Ok(())
}

/// Returns the next message of a stream of events.
async fn message(live: &mut reqwest::Response) -> Result<Value> {
    let mut text = Vec::new();
    loop {
        text.extend_from_slice(&live.chunk().await?.context("the stream has ended")?);
        if let Some(data) = text.strip_prefix(b"data: ").and_then(|text| text.strip_suffix(b"\n\n")) {
            return Ok(serde_json::from_slice(data)?);
        }
        if text.starts_with(b":") {
            text.clear();
        }
    }
}
