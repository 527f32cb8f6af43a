// Groups: which photos are copies or crops of each other, or show the same thing.

import { Photo, ask, counted, follow, h, regionOverlay, save, say } from "/static/api.js";
import { PairView, inverse, outline, square } from "/static/pair.js";

const WORDS = {
  copy: "copies", crop: "crops", rotated: "rotated", mirrored: "mirrored", burst: "burst",
  panorama: "panorama", scene: "the same scene or object",
};

export async function openGroups(panel, info) {
  if (!info.collection) {
    panel.textContent = "No index is served: start `hardnet serve photos.index`.";
    return;
  }
  const status = h("p", { className: "status", role: "status" });
  const mirrored = h("input", { type: "checkbox" });
  const start = h("button", { className: "main", onclick: compare }, "Compare all photos");
  const stop = h("button", { hidden: true }, "Stop");
  const bar = h("progress", { hidden: true, max: 1, value: 0 });
  const kind = h("select", { "aria-label": "Kind of groups" }, h("option", { value: "" }, "all kinds"),
    ...Object.keys(WORDS).map((name) => h("option", { value: name }, WORDS[name])));
  const list = h("button", { hidden: true }, "Save the list of removable copies");
  const shown = h("div");
  panel.replaceChildren(
    h("div", { className: "bar" }, start, stop, h("label", { className: "tick" }, mirrored, "also mirror images (slower)"),
      h("label", {}, "show", kind), list),
    bar, status, shown);
  let found = null;
  kind.addEventListener("change", show);
  try {
    found = await ask("/groups");
    show();
  } catch {
    say(status, "The photos have not been compared yet. Results are kept: next time, only new photos are compared.");
  }

  async function compare() {
    start.disabled = true;
    try {
      const job = await ask(`/groups?mirrored=${mirrored.checked}`, { method: "POST" });
      const end = await follow(job, { bar, stop, status });
      if (end.state === "stopped") say(status, "stopped: finished work is kept");
      else {
        found = await ask("/groups");
        show();
      }
    } catch (error) {
      say(status, error.message, "bad");
    }
    start.disabled = false;
  }

  function show() {
    if (!found) return;
    const groups = found.groups.filter((group) => !kind.value || group.kind === kind.value);
    say(status, `${counted(groups.length, "group")} among ${counted(found.photos, "photo")}; nothing is ever deleted`, "good");
    list.hidden = !found.removable.length;
    list.onclick = () => save("removable.txt", `${found.removable.join("\n")}\n`, "text/plain");
    shown.replaceChildren(...groups.map((group) => groupBox(group, found.pairs)));
  }
}

function groupBox(group, pairs) {
  const inside = new Set(group.photos);
  const own = pairs.filter((pair) => inside.has(pair.a) && inside.has(pair.b));
  const detail = h("div");
  const photos = h("ol", { className: "hits" });
  group.photos.forEach((path, i) => photos.append(photoItem(group, path, group.ids[i], own, detail)));
  return h("article", { className: "group" },
    h("h2", {}, `${WORDS[group.kind] || group.kind}: ${counted(group.photos.length, "photo")}`), photos, detail);
}

function photoItem(group, path, id, pairs, detail) {
  const best = path === group.best;
  const shot = h("span", { className: `shot ${best ? "best" : ""}` });
  const name = path.split("/").slice(-2).join("/");
  if (id) {
    const image = h("img", { src: `/photos/${id}/thumbnail`, alt: name, loading: "lazy" });
    shot.append(image);
    const crops = pairs.filter((pair) => pair.kind === "crop" && (pair.a === path || pair.b === path));
    if (crops.length) image.addEventListener("load", () => drawCrops(shot, image, path, crops));
  }
  const pair = partner(group, path, pairs);
  const note = pair ? `${pair.kind}, ${counted(pair.inliers, "inlier")}` : "";
  return h("li", {}, h("button", { title: path, disabled: !pair, onclick: () => showPair(pair, detail) }, shot,
    h("span", { className: "note" }, name, h("br"), best ? h("span", { className: "sure" }, "best") : "", best && note ? ", " : "", note)));
}

// The pair to show for a photo: the one with the best photo of its group, or its strongest.
function partner(group, path, pairs) {
  const own = pairs.filter((pair) => pair.a === path || pair.b === path);
  return own.find((pair) => pair.a === group.best || pair.b === group.best)
    || own.sort((p, q) => q.inliers - p.inliers)[0];
}

// Outline each crop on the photo that it was cut from.
async function drawCrops(shot, image, path, crops) {
  for (const pair of crops) {
    const isA = pair.a === path;
    const covered = isA ? pair.overlap[0] : pair.overlap[1];
    const other = isA ? pair.overlap[1] : pair.overlap[0];
    if (covered >= other) continue; // this one is the crop
    const [own, small] = await Promise.all([pair.ids[isA ? 0 : 1], pair.ids[isA ? 1 : 0]].map(sizeOf));
    if (!own || !small) continue;
    const matrix = isA ? inverse(square(pair.transform)) : square(pair.transform);
    shot.append(regionOverlay(own, [outline(matrix, small)]));
  }
}

const sizes = new Map();
function sizeOf(id) {
  if (!id) return null;
  if (!sizes.has(id)) sizes.set(id, ask(`/photos/${id}`).then((facts) => facts.size).catch(() => null));
  return sizes.get(id);
}

async function showPair(pair, detail) {
  const facts = await Promise.all(pair.ids.map((id) => ask(`/photos/${id}`)));
  const photos = await Promise.all(facts.map((one) => Photo.ofIndex(one)));
  const view = new PairView();
  const shares = pair.overlap.map((share) => `${(100 * share).toFixed(0)} %`);
  detail.replaceChildren(
    h("p", {}, `${pair.kind}: ${counted(pair.inliers, "inlier")}; the second shows ${shares[0]} of the first, the first ${shares[1]} of the second.`),
    view.element, h("button", { onclick: () => detail.replaceChildren() }, "Close"));
  view.show(...photos, {
    sizes: facts.map((one) => one.size),
    pairs: pair.points,
    inliers: pair.points.map(() => true),
    matrix: square(pair.transform),
  });
}
