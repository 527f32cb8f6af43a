// Search: the collection, a photo or a part of one to look for, and the hits.

import { Latest, Photo, ask, counted, dropZone, follow, form, h, milliseconds, onPaste, regionOverlay, say, svg } from "/static/api.js";
import { Grid } from "/static/grid.js";
import { PairView, square } from "/static/pair.js";

export async function openSearch(panel, info) {
  if (!info.collection) {
    panel.textContent = "No index is served. Make one with `hardnet index build photos.index photos/`, then start `hardnet serve photos.index`.";
    return;
  }
  const latest = new Latest();
  const status = h("p", { className: "status", role: "status" });
  const count = h("span", { className: "hint" });
  const filter = h("input", { type: "search", placeholder: "part of a path", "aria-label": "Show photos whose path contains" });
  const undo = h("button", { disabled: !info.collection.undo, onclick: takeBack }, "Undo removal");
  const folders = h("select", { "aria-label": "Folder to add" });
  const add = h("button", { onclick: addFolder }, "Add folder");
  const bar = h("progress", { hidden: true, max: 1, value: 0 });
  const stop = h("button", { hidden: true }, "Stop");
  const mode = h("select", {}, ...info.modes.map((name) => h("option", { value: name, selected: name === "he+sv" }, name)));
  const zone = dropZone("Look for a photo: drop, paste or pick", take);
  const query = h("div");
  const hits = h("ol", { className: "hits" });
  const detail = h("div");
  const grid = new Grid((photo) => choose(photo));
  panel.replaceChildren(
    h("div", { className: "split" },
      h("div", {},
        h("div", { className: "bar" }, h("label", {}, "filter", filter), undo, count),
        grid.element,
        h("div", { className: "bar" }, folders, add, stop), bar),
      h("div", {}, zone, query, status, hits, detail)));

  filter.addEventListener("input", () => refresh());
  onPaste(panel, take);
  await refresh();
  fillFolders();

  async function refresh() {
    const total = await grid.load(filter.value);
    count.textContent = counted(total, "photo");
  }

  async function fillFolders() {
    const found = await ask("/folders");
    folders.replaceChildren(...found.map((one) => h("option", { value: one.id, title: one.path }, `${one.path.split("/").slice(-2).join("/")}: ${counted(one.images, "photo")}`)));
    folders.hidden = add.hidden = !found.length;
  }

  async function take(file) {
    try {
      open(await Photo.of(file, info));
    } catch (error) {
      say(status, error.message, "bad");
    }
  }

  async function choose(facts) {
    try {
      open(await Photo.ofIndex(facts), facts);
    } catch (error) {
      say(status, `${facts.path}: ${error.message}`, "bad");
    }
  }

  function open(photo, facts = null) {
    zone.show(photo.file ? photo : null);
    const picker = boxPicker(photo);
    const remove = facts && h("button", { onclick: () => removePhoto(facts) }, "Remove from index");
    query.replaceChildren(
      h("p", { className: "hint" }, `${photo.name}: drag a box around what to look for, or search for all of it.`),
      picker.element,
      h("div", { className: "bar" }, ...picker.fields, h("label", {}, "mode", mode),
        h("button", { className: "main", onclick: () => run(photo, picker.box()) }, "Search"), remove));
    picker.done = () => run(photo, picker.box());
    hits.replaceChildren();
    detail.replaceChildren();
    say(status, "");
    if (window.matchMedia("(max-width: 760px)").matches) query.scrollIntoView();
  }

  async function run(photo, box) {
    say(status, "searching …");
    detail.replaceChildren();
    try {
      const body = form({ ...photo.fields("file", "photo"), box: box && box.join(","), mode: mode.value, k: 24 });
      const found = await latest.ask("/search", { method: "POST", body });
      const sure = found.hits.filter((hit) => hit.verified).length;
      say(status, `${counted(found.hits.length, "hit")} in ${counted(found.images, "photo")}, ${sure} verified; ${milliseconds(found.seconds)}`, sure ? "good" : "");
      hits.replaceChildren(...found.hits.map((hit, rank) => hitItem(photo, box, hit, rank + 1)));
    } catch (error) {
      if (error.name !== "AbortError") say(status, error.message, "bad");
    }
  }

  function hitItem(photo, box, hit, rank) {
    const shot = h("span", { className: "shot" });
    if (hit.id) shot.append(h("img", { src: `/photos/${hit.id}/thumbnail`, alt: "", loading: "lazy" }));
    if (hit.region && hit.size) shot.append(regionOverlay(hit.size, [hit.region]));
    const verdict = hit.verified ? "verified" : hit.inliers ? "unsure" : "not verified";
    const name = hit.path.split("/").slice(-2).join("/");
    return h("li", {}, h("button", { disabled: !hit.id, title: hit.path, onclick: () => explain(photo, box, hit) }, shot,
      h("span", { className: "note" }, `${rank}. ${name}`, h("br"),
        h("span", { className: hit.verified ? "sure" : "" }, verdict), `, ${counted(hit.inliers, "inlier")}, score ${hit.score.toPrecision(3)}`)));
  }

  async function explain(photo, box, hit) {
    try {
      const body = form({ ...photo.fields("file", "photo"), hit: hit.id, box: box && box.join(",") });
      const [found, other] = await Promise.all([
        latest.ask("/explain", { method: "POST", body }),
        Photo.ofIndex(hit),
      ]);
      const view = new PairView();
      const close = h("button", { onclick: () => detail.replaceChildren() }, "Close");
      detail.replaceChildren(
        h("h2", { title: hit.path }, other.name),
        h("p", {}, `Of ${found.query.features} features of the query and ${found.features} of the photo, ${found.shared} pairs share a visual word and look alike; ${found.inliers} of them agree on one map from the query to the photo, ${found.verified ? "more than chance explains" : "which may be chance"}.`),
        view.element, close);
      view.show(photo, other, {
        sizes: [found.query.size, found.size],
        pairs: found.pairs,
        inliers: found.pairs.map(() => true),
        matrix: square(found.transform),
      });
      detail.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (error.name !== "AbortError") say(status, error.message, "bad");
    }
  }

  async function removePhoto(facts) {
    try {
      const answer = await ask(`/photos/${facts.id}`, { method: "DELETE" });
      undo.disabled = !answer.undo;
      query.replaceChildren();
      say(status, `${facts.name} is removed from the index; its file is kept`);
      await refresh();
      undo.focus();
    } catch (error) {
      say(status, error.message, "bad");
    }
  }

  async function takeBack() {
    try {
      const answer = await ask("/undo", { method: "POST" });
      undo.disabled = !answer.undo;
      say(status, `${-answer.removed} restored, ${counted(answer.images, "photo")} in the index`, "good");
      await refresh();
    } catch (error) {
      say(status, error.message, "bad");
    }
  }

  async function addFolder() {
    add.disabled = true;
    try {
      const job = await ask("/photos", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ folder: folders.value }),
      });
      const end = await follow(job, { bar, stop, status });
      const made = end.result;
      say(status, end.state === "stopped" ? "stopped: finished work is kept" : `${counted(made.indexed, "photo")} added, ${made.unchanged} unchanged, ${made.skipped.length} skipped`, "good");
      await refresh();
    } catch (error) {
      say(status, error.message, "bad");
    }
    add.disabled = false;
  }
}

// A photo with a box that can be dragged or typed.
function boxPicker(photo) {
  // The image is loaded already, so a box lands where it is drawn from the first moment.
  const image = Object.assign(photo.image, { alt: photo.name, draggable: false });
  const size = photo.size || [photo.image.naturalWidth, photo.image.naturalHeight];
  const rect = svg("rect", { width: 0, height: 0 });
  const overlay = svg("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, preserveAspectRatio: "none" }, rect);
  const element = h("div", { className: "query" }, image, overlay);
  const inputs = ["x", "y", "width", "height"].map((name) => h("input", { type: "number", min: 0, "aria-label": `${name} of the box` }));
  const picker = { element, fields: inputs.map((input, i) => h("label", {}, ["x", "y", "width", "height"][i], input)), done: () => {} };
  let start = null;

  picker.box = () => {
    const values = inputs.map((input) => Number(input.value));
    return values[2] > 0 && values[3] > 0 ? values : null;
  };
  const draw = () => ["x", "y", "width", "height"].forEach((name, i) => rect.setAttribute(name, inputs[i].value || 0));
  const place = (event) => {
    const bounds = image.getBoundingClientRect();
    return [0, 1].map((axis) => {
      const share = axis ? (event.clientY - bounds.top) / bounds.height : (event.clientX - bounds.left) / bounds.width;
      return Math.min(Math.max(share, 0), 1) * size[axis];
    });
  };
  const set = (a, b) => {
    const values = [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1])];
    inputs.forEach((input, i) => { input.value = Math.round(values[i]); });
    draw();
  };
  element.addEventListener("pointerdown", (event) => {
    start = place(event);
    element.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  element.addEventListener("pointermove", (event) => start && set(start, place(event)));
  element.addEventListener("pointerup", (event) => {
    if (!start) return;
    set(start, place(event));
    start = null;
    const box = picker.box();
    if (box && box[2] > 8 && box[3] > 8) picker.done();
    else inputs.forEach((input) => { input.value = ""; });
    draw();
  });
  for (const input of inputs) input.addEventListener("input", draw);
  return picker;
}
