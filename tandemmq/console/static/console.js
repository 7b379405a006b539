// Follows the cluster: when the server says that something changed, this page is asked for again, and the regions of
// it that differ are replaced, one by one, so that focus, scrolling and what is typed stay. Everything works without it.
"use strict";

const FRAGMENT = { headers: { "X-Console-Fragment": "1" }, credentials: "same-origin" };
const live = document.getElementById("live");
let told = new Map();      // region -> as the server sent it last
let tag = "";              // ETag of this page as it is shown
let asking = false, again = false, stale = false;

const main = () => document.getElementById("main");
const follows = () => main().hasAttribute("data-follow");

function say(state, words) {
  live.className = "live " + state;
  live.textContent = words;
}

function remember(part) {
  told = new Map(Array.from(part.querySelectorAll("[data-live]"), (each) => [each.id, each.outerHTML]));
}

// --- replacing what changed ---

function busyIn(region) {
  const at = document.activeElement;
  const typing = at && region.contains(at) && at.matches("input, select, textarea");
  const chosen = getSelection();
  return typing || (chosen && !chosen.isCollapsed && region.contains(chosen.anchorNode));
}

function replaced(region, fresh) {
  const at = document.activeElement;
  const inside = at && region.contains(at) ? Array.from(region.querySelectorAll("a, button, summary")).indexOf(at) : -1;
  const open = Array.from(region.querySelectorAll("details"), (each) => each.open);
  const scrolled = Array.from(region.querySelectorAll(".scroll, .body"), (each) => [each.scrollLeft, each.scrollTop]);
  const here = Array.from(region.querySelectorAll("tbody tr")).findIndex((each) => each.classList.contains("here"));
  region.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((each, place) => { each.open = open[place] || false; });
  fresh.querySelectorAll(".scroll, .body").forEach((each, place) => {
    if (scrolled[place]) [each.scrollLeft, each.scrollTop] = scrolled[place];
  });
  if (here >= 0) fresh.querySelectorAll("tbody tr")[here]?.classList.add("here");
  if (inside >= 0) fresh.querySelectorAll("a, button, summary")[inside]?.focus({ preventScroll: true });
}

function show(text, whole) {
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
  if (!fresh) return;
  const now = Array.from(fresh.querySelectorAll("[data-live]"));
  const same = now.length === told.size && now.every((each) => told.has(each.id));
  if (whole || !same) {
    const focused = document.activeElement && main().contains(document.activeElement);
    if (focused && !whole && busyIn(main())) return;
    main().replaceWith(document.adoptNode(fresh));
    remember(main());
    return;
  }
  for (const each of now) {
    const html = each.outerHTML;
    const region = document.getElementById(each.id);
    if (told.get(each.id) === html || !region || busyIn(region)) continue;
    told.set(each.id, html);
    replaced(region, document.adoptNode(each));
  }
}

async function refresh() {
  if (!follows()) return;
  if (document.hidden) { stale = true; return; }
  if (asking) { again = true; return; }
  asking = true;
  try {
    const where = location.href;
    const headers = { ...FRAGMENT.headers, ...(tag ? { "If-None-Match": tag } : {}) };
    const answer = await fetch(where, { ...FRAGMENT, headers, cache: "no-store" });
    if (answer.status === 401) { location.reload(); return; }
    if (answer.ok && where === location.href) {
      tag = answer.headers.get("ETag") || "";
      show(await answer.text(), false);
    }
    if (answer.ok || answer.status === 304) {
      say("on", "live");
      const taken = document.getElementById("taken");
      if (answer.headers.get("X-Console-Taken")) taken.textContent = "Looked at " + answer.headers.get("X-Console-Taken") + ".";
    }
  } catch {
    say("lost", "no answer");
  } finally {
    asking = false;
    if (again) { again = false; setTimeout(refresh, 250); }
  }
}

// --- hearing of changes ---

let events = null, lost = 0;

function listen() {
  events = new EventSource("/console/events");
  events.addEventListener("changed", () => { lost = 0; refresh(); });
  events.onopen = () => { lost = 0; if (follows()) say("on", "live"); };
  events.onerror = () => {
    events.close();
    say("lost", "no answer");
    lost += 1;
    setTimeout(() => { listen(); refresh(); }, Math.min(1000 * 2 ** lost, 15000));
  };
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && stale) { stale = false; refresh(); }
});

// --- narrowing a table down while typing ---

let typed = 0;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-narrow]");
  if (!form) return;
  clearTimeout(typed);
  typed = setTimeout(async () => {
    const query = new URLSearchParams(new FormData(form));
    for (const [name, value] of Array.from(query)) if (!value) query.delete(name);
    const where = form.action.split("?")[0] + (query.size ? "?" + query : "");
    const answer = await fetch(where, { ...FRAGMENT, cache: "no-store" }).catch(() => null);
    if (!answer || !answer.ok) return;
    history.replaceState(null, "", where);
    tag = "";
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const region = form.closest("[data-live]");
    const found = region && fresh.getElementById(region.id);
    if (!found) return;
    const own = form.querySelector("input[type=search]");
    told.set(region.id, found.outerHTML);
    const header = region.querySelector("header");      // holds the field that is typed into
    const rest = Array.from(found.children).filter((each) => each.tagName !== "HEADER");
    Array.from(region.children).forEach((each) => { if (each !== header) each.remove(); });
    region.append(...rest.map((each) => document.adoptNode(each)));
    const count = header.querySelector("h2"), counted = found.querySelector("header h2");
    if (count && counted) count.replaceWith(document.adoptNode(counted));
    own.focus();
  }, 180);
});

// --- what the search form needs, by the way that is chosen ---

function arrange() {
  const by = document.getElementById("by");
  if (!by) return;
  for (const each of document.querySelectorAll("[data-by]")) each.hidden = !each.dataset.by.split(" ").includes(by.value);
}
document.addEventListener("change", (event) => { if (event.target.id === "by") arrange(); });

document.addEventListener("click", (event) => {
  const all = event.target.closest("[data-choose-all]");
  if (!all) return;
  const boxes = Array.from(all.form.querySelectorAll('input[name="letter"]'));
  const on = boxes.some((each) => !each.checked);
  for (const each of boxes) each.checked = on;
});

// --- light and dark ---

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = "tandem_theme=" + root.dataset.theme + "; path=/console; max-age=31536000; samesite=strict";
});

// --- keys ---

const help = document.getElementById("help");
document.getElementById("keys").addEventListener("click", () => help.showModal());

function step(by) {
  const rows = Array.from(main().querySelectorAll("tbody tr")).filter((each) => each.querySelector("a"));
  if (!rows.length) return;
  const at = rows.findIndex((each) => each.classList.contains("here"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
  rows[at]?.classList.remove("here");
  next.classList.add("here");
  next.querySelector("a").focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (going && Date.now() - going < 1500) {
    going = 0;
    const place = document.querySelector('.places a[data-key="' + CSS.escape(event.key) + '"]');
    if (place) { event.preventDefault(); place.click(); }
    return;
  }
  const go = { n: "next", p: "prev" }[event.key];
  if (event.key === "g") going = Date.now();
  else if (event.key === "?") help.showModal();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (go) main().querySelector('.pager a[rel="' + go + '"]')?.click();
  else if (event.key === "/") {
    const field = main().querySelector('input[type="search"], input[name="topic"]');
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  }
});

remember(main());
arrange();
if (follows()) listen();
