// Results: the stored benchmark numbers as tables that can be sorted, and their figures.

import { ask, h, say } from "/static/api.js";

export async function openResults(panel, info) {
  if (!info.results) {
    panel.textContent = "There are no stored results: start `hardnet serve --results FOLDER` with a folder of results files, which `hardnet bench ... -o results/name.json` writes.";
    return;
  }
  const status = h("p", { className: "status", role: "status" });
  const entries = await ask("/results");
  const choice = h("select", { "aria-label": "Results", onchange: () => open(choice.value) },
    ...entries.map((entry) => h("option", { value: entry.name }, `${entry.name}: ${entry.title}`)));
  const shown = h("div");
  panel.replaceChildren(h("div", { className: "bar" }, h("label", {}, "results", choice)), status, shown);
  if (entries.length) await open(entries[0].name);

  async function open(name) {
    try {
      const found = await ask(`/results/${encodeURIComponent(name)}`);
      say(status, "");
      const figures = found.figures.map((figure) => h("img", {
        className: "figure", alt: `figure ${figure} of ${name}`, loading: "lazy",
        src: `/results/${encodeURIComponent(name)}/${encodeURIComponent(figure)}`,
      }));
      shown.replaceChildren(
        ...figures,
        ...found.tables.map(tableBox),
        ...(found.command ? [h("p", { className: "hint" }, "made by ", h("code", {}, found.command))] : []));
    } catch (error) {
      say(status, error.message, "bad");
    }
  }
}

function tableBox(table) {
  const body = h("tbody");
  let sorted = [-1, 1];
  const heads = table.columns.map((name, column) => {
    const button = h("button", { onclick: () => sort(column) }, name);
    return h("th", { scope: "col" }, button);
  });
  fill(table.rows);

  function fill(rows) {
    body.replaceChildren(...rows.map((row) => h("tr", {}, ...row.map(cell))));
  }

  function sort(column) {
    const order = sorted[0] === column ? -sorted[1] : 1;
    sorted = [column, order];
    const rows = [...table.rows].sort((a, b) => order * compare(a[column], b[column]));
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : order > 0 ? "ascending" : "descending"));
    fill(rows);
  }

  return h("div", { className: "tables" }, h("h2", {}, table.title),
    h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body), h("p", { className: "hint" }, table.note));
}

function cell(text) {
  const best = /^\*\*(.+?)\*\*(.*)$/s.exec(text);
  return best ? h("td", {}, h("strong", {}, best[1]), best[2]) : h("td", {}, text);
}

function compare(a, b) {
  const [x, y] = [a, b].map((text) => parseFloat(text.replaceAll("*", "")));
  if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
  return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y;
}
