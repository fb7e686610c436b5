// Objects by key, as the server sends them: `pool/NAME`, `host/NAME` and `cluster`. Texts from hosts are untrusted, so they are set only as text.

const STATES = {
  failed: ["✖", "failed"],
  "not-ready": ["▲", "not Ready"],
  change: ["◐", "changing"],
  waiting: ["◷", "waiting"],
  new: ["○", "new"],
  done: ["✔", "done"],
};
const ORDER = Object.keys(STATES);
const PAGE = 50;
const byName = new Intl.Collator(undefined, { numeric: true }).compare;

const objects = new Map();
const cards = new Map();
const shown = new Map();
let isDue = false;

const $ = (selector, below = document) => below.querySelector(selector);
const make = (id) => $(`#${id}`).content.firstElementChild.cloneNode(true);

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Links to the explanation of a reason, which the command serves. Removes the link if there is no reason. */
function explain(link, reason) {
  if (link.textContent === reason) return;
  link.textContent = reason;
  if (reason) link.href = `reasons/${reason}`;
  else link.removeAttribute("href");
}

/** Ranges of ages, as in kubectl: the exclusive end in seconds, the larger unit and its seconds, and the smaller unit and its seconds, if shown. */
const AGES = [
  [120, "s", 1], [600, "m", 60, "s", 1], [10800, "m", 60], [28800, "h", 3600, "m", 60], [172800, "h", 3600],
  [691200, "d", 86400, "h", 3600], [63072000, "d", 86400], [252288000, "y", 31536000, "d", 86400], [Infinity, "y", 31536000],
];

/** Returns the time since a past time, or until a future one, in the format of kubectl and of the command `status`. */
export function age(time, now = Date.now()) {
  if (!time) return "";
  const seconds = Math.floor(Math.abs(now - Date.parse(time)) / 1000);
  const [, unit, size, small, smallSize] = AGES.find(([end]) => seconds < end);
  const rest = small ? Math.floor((seconds % size) / smallSize) : 0;
  return `${Math.floor(seconds / size)}${unit}${rest ? `${rest}${small}` : ""}`;
}

/** Returns the message with ages in place of its times, as the command `status` shows it. */
export function withAges(message, now = Date.now()) {
  return message.replace(/\b(since|next try|begins at) (\d{4}-[\dT:-]+Z)/g, (whole, word, time) => {
    const isPast = Date.parse(time) <= now;
    if (word === "since") return isPast ? `for ${age(time, now)}` : whole;
    if (word === "begins at") return isPast ? whole : `begins in ${age(time, now)}`;
    return isPast ? whole : `${word} in ${age(time, now)}`;
  });
}

/** Makes the wanted elements the children of `parent`, and moves only those that are in another place, so that the focus is kept. */
function keep(parent, wanted) {
  wanted.forEach((element, at) => {
    if (parent.children[at] !== element) parent.insertBefore(element, parent.children[at] ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

function due() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    render();
  });
}

function render() {
  const wanted = $("#find").value.trim().toLowerCase();
  const pools = [];
  const hosts = new Map();
  for (const [key, object] of objects) {
    if (key.startsWith("pool/")) pools.push(object);
    if (!key.startsWith("host/")) continue;
    if (!hosts.has(object.pool)) hosts.set(object.pool, []);
    hosts.get(object.pool).push(object);
  }
  pools.sort((a, b) => a.rank - b.rank);
  const isFound = (name) => name.toLowerCase().includes(wanted);
  const found = pools.map((pool) => {
    const all = hosts.get(pool.name) ?? [];
    return { pool, all, listed: !wanted || isFound(pool.name) ? all : all.filter((host) => isFound(host.name)) };
  });
  const visible = found.filter(({ pool, listed }) => !wanted || isFound(pool.name) || listed.length > 0);
  keep($("#pools"), visible.map(({ pool, all, listed }) => card(pool, all, listed, wanted)));
  const { cluster, warnings = [] } = objects.get("cluster") ?? {};
  put($("#cluster"), cluster ?? "");
  put($("#warnings"), warnings.join("\n"));
  $("#warnings").hidden = warnings.length === 0;
  $("#none").hidden = !cluster || pools.length > 0;
  asks(pools);
}

function asks(pools) {
  const all = pools.flatMap((pool) => pool.asks.map((ask) => ({ pool: pool.name, ...ask })));
  const list = $("#asks ul");
  const key = (ask) => JSON.stringify(ask);
  const there = new Map([...list.children].map((item) => [item.dataset.key, item]));
  keep(list, all.map((ask) => {
    const before = there.get(key(ask));
    if (before) return before;
    const item = make("ask");
    item.dataset.key = key(ask);
    put($("strong", item), ask.pool);
    put($("span", item), ask.what);
    const copy = $(".copy", item);
    copy.hidden = !ask.command;
    put($("code", copy), ask.command ?? "");
    copy.onclick = async () => {
      await navigator.clipboard.writeText(ask.command);
      copy.classList.add("done");
    };
    return item;
  }));
  $("#asks").hidden = all.length === 0;
}

function card(pool, all, listed, wanted) {
  if (!cards.has(pool.name)) {
    const element = make("pool");
    put($("h2", element), pool.name);
    $("details", element).ontoggle = due;
    $(".more", element).onclick = () => {
      shown.set(pool.name, (shown.get(pool.name) ?? PAGE) + PAGE);
      due();
    };
    cards.set(pool.name, element);
  }
  const element = cards.get(pool.name);
  const counts = ORDER.map((state) => [state, all.filter((host) => host.state === state).length]);
  const said = counts.filter(([, count]) => count > 0);
  const words = said.map(([state, count]) => `${STATES[state][0]} ${count} ${STATES[state][1]}`).reverse().join("   ");
  const badge = $(".badge", element);
  const [tone, sign] = { True: ["done", "✔"], False: ["failed", "✖"] }[pool.ready] ?? ["change", "◐"];
  badge.className = `badge ${pool.degraded || pool.stalled ? "failed" : tone}`;
  put(badge, [`${sign} ${pool.reason}`, pool.degraded && "Degraded", pool.stalled && "Stalled"].filter(Boolean).join(" · "));
  const follows = all.filter((host) => host.upToDate).length;
  const to = pool.desiredVersion ? `version ${pool.desiredVersion}: ${follows} of ${all.length}` : "";
  put($(".version", element), to);
  const bar = $(".bar", element);
  bar.setAttribute("aria-label", words);
  if (bar.dataset.of !== words) {
    bar.dataset.of = words;
    bar.replaceChildren(...said.reverse().map(([state, count]) => {
      const part = document.createElement("i");
      part.className = state;
      part.style.flexGrow = count;
      part.title = `${count} ${STATES[state][1]}`;
      return part;
    }));
  }
  put($(".counts", element), words);
  const message = withAges(pool.message);
  put($(".message", element), pool.observed ? message : `The operator has not observed the latest change. Previous status: ${message}`);
  keep($(".refused", element), pool.refused.map((entry) => {
    const item = document.createElement("li");
    put(item, `${entry.host} is refused (${entry.reason}): ${entry.message}`);
    return item;
  }));
  const details = $("details", element);
  put($("summary", element), `${listed.length} host${listed.length === 1 ? "" : "s"}`);
  if (wanted && listed.length < all.length) details.open = true;
  if (details.open) table(element, pool, listed);
  return element;
}

function table(element, pool, hosts) {
  const body = $("tbody", element);
  const limit = shown.get(pool.name) ?? PAGE;
  const rank = (host) => ORDER.indexOf(host.state);
  hosts.sort((a, b) => rank(a) - rank(b) || byName(a.name, b.name));
  const there = new Map([...body.children].map((row) => [row.dataset.key, row]));
  keep(body, hosts.slice(0, limit).flatMap((host) => {
    const row = there.get(host.name) ?? hostRow(host.name);
    const cells = row.children;
    const [sign, word] = STATES[host.state];
    if (cells[1].className !== host.state) cells[1].className = host.state;
    const next = host.nextRetryTime ? (Date.parse(host.nextRetryTime) > Date.now() ? `in ${age(host.nextRetryTime)}` : "now") : "";
    const texts = [`${sign} ${host.phase ?? word}`, host.step ?? "", age(host.since), next, host.version ?? ""];
    texts.forEach((text, at) => put(cells[at + 1], text));
    const [news, reason] = cells[texts.length + 1].children;
    put(news, withAges(host.news));
    explain(reason, host.trouble ?? "");
    return row.facts ? [row, row.facts] : [row];
  }));
  const more = $(".more", element);
  more.hidden = hosts.length <= limit;
  put(more, `Show ${Math.min(PAGE, hosts.length - limit)} more of ${hosts.length - limit}`);
}

function hostRow(name) {
  const row = make("host");
  row.dataset.key = name;
  const button = $("button", row);
  put(button, name);
  button.onclick = async () => {
    if (row.facts) {
      row.facts.remove();
      row.facts = null;
    } else {
      row.facts = document.createElement("tr");
      row.facts.className = "facts";
      row.facts.dataset.key = `facts/${name}`;
      const cell = row.facts.insertCell();
      cell.colSpan = 7;
      put(cell, "loading");
      row.after(row.facts);
      await facts(cell, name);
    }
    button.setAttribute("aria-expanded", String(Boolean(row.facts)));
  };
  return row;
}

/** Shows the explanation of a host's reason, and its events, the newest first. */
async function facts(cell, name) {
  const reason = objects.get(`host/${name}`)?.reason ?? "";
  const meaning = document.createElement("p");
  const list = document.createElement("ul");
  try {
    const explanation = await fetch(`reasons/${encodeURIComponent(reason)}`);
    if (explanation.ok) put(meaning, await explanation.text());
    const answer = await fetch(`events/${encodeURIComponent(name)}`);
    if (!answer.ok) throw new Error(await answer.text());
    for (const event of await answer.json()) {
      const item = document.createElement("li");
      put(item, `${age(event.time)} ago, ${event.reason}: ${event.note}`);
      list.append(item);
    }
    if (list.children.length === 0) put(meaning, `${meaning.textContent} No events.`.trim());
  } catch (error) {
    put(meaning, `The events cannot be read: ${error.message}`);
  }
  cell.replaceChildren(meaning, list);
}

function follow() {
  const live = new EventSource("live");
  const link = $("#link");
  live.onmessage = ({ data }) => {
    const { whole, set, gone } = JSON.parse(data);
    if (whole) objects.clear();
    for (const [key, object] of Object.entries(set)) objects.set(key, object);
    for (const key of gone) {
      objects.delete(key);
      if (key.startsWith("pool/")) cards.delete(key.slice(5));
    }
    put(link, "live");
    link.className = "";
    document.documentElement.dataset.seen = objects.size;
    due();
  };
  live.onerror = () => {
    put(link, "not connected: what is shown may be out of date. Check that the command still runs.");
    link.className = "lost";
  };
}

$("#find").oninput = due;
setInterval(due, 5000);
follow();
