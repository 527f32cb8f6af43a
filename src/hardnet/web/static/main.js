// The tabs of the page; each is filled when it is first opened.

import { ask } from "/static/api.js";
import { openGroups } from "/static/groups.js";
import { openMatch } from "/static/match.js";
import { openResults } from "/static/results.js";
import { openSearch } from "/static/search.js";

const TABS = { match: openMatch, search: openSearch, groups: openGroups, results: openResults };
const opened = new Set();
const tabs = [...document.querySelectorAll("[role=tab]")];
const info = ask("/info");

async function show(name, focus = false) {
  if (!(name in TABS)) name = "match";
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  if (opened.has(name)) return;
  opened.add(name);
  const panel = document.getElementById(name);
  try {
    await TABS[name](panel, await info);
  } catch (error) {
    opened.delete(name);
    panel.textContent = error.message;
  }
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    show(next.getAttribute("aria-controls"), true);
  });
}
window.addEventListener("hashchange", () => show(location.hash.slice(1)));
for (const name of ["dragover", "drop"]) {
  window.addEventListener(name, (event) => event.preventDefault()); // a file dropped beside a zone is not opened
}
const first = await info.catch(() => null);
show(location.hash.slice(1) || (first?.collection ? "search" : "match"));
