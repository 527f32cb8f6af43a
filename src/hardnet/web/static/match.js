// Match: two photos, how to match them, and the matches.

import { Latest, Photo, counted, dropZone, form, h, milliseconds, onPaste, save, say } from "/static/api.js";
import { PairView } from "/static/pair.js";

const DEFAULTS = { detector: "dog", descriptor: "hardnet-small", keypoints: 2048, orientation: "auto" };

const KINDS = { fundamental: "fundamental matrix" };

export async function openMatch(panel, info) {
  DEFAULTS.ratio = info.ratio;
  const photos = [null, null];
  const latest = new Latest();
  const status = h("p", { className: "status", role: "status" });
  const zones = ["First photo: drop, paste or pick", "Second photo: drop, paste or pick"].map((label, side) =>
    dropZone(label, (file) => take(file, side)));
  const controls = {
    detector: select(info.detectors, DEFAULTS.detector),
    descriptor: select(info.descriptors, DEFAULTS.descriptor),
    keypoints: h("input", { type: "number", min: 1, max: 20000, value: DEFAULTS.keypoints }),
    ratio: h("input", { type: "number", min: 0.05, max: 1, step: 0.01, value: DEFAULTS.ratio }),
    upright: h("input", { type: "checkbox" }),
  };
  const start = h("button", { className: "main", disabled: true, onclick: run }, "Match");
  const stop = h("button", { hidden: true, onclick: () => latest.stop() }, "Stop");
  const view = new PairView();
  const numbers = h("table", { className: "numbers" });
  const saves = h("div", { className: "bar" });
  const output = h("div", { hidden: true }, view.element, numbers, saves);
  panel.replaceChildren(
    h("div", { className: "zones" }, ...zones),
    h("div", { className: "bar" },
      h("label", {}, "detector", controls.detector),
      h("label", {}, "descriptor", controls.descriptor),
      h("label", {}, "keypoints", controls.keypoints),
      h("label", {}, "ratio", controls.ratio),
      h("label", { className: "tick" }, controls.upright, "upright"),
      start, stop),
    status, output);

  onPaste(panel, (file) => take(file, photos[0] ? 1 : 0));

  async function take(file, side) {
    say(status, "");
    try {
      photos[side] = await Photo.of(file, info);
    } catch (error) {
      photos[side] = null;
      say(status, error.message, "bad");
    }
    zones[side].show(photos[side]);
    start.disabled = !photos.every(Boolean);
  }

  function settings() {
    return {
      detector: controls.detector.value,
      descriptor: controls.descriptor.value,
      keypoints: Number(controls.keypoints.value),
      ratio: Number(controls.ratio.value),
      orientation: controls.upright.checked ? "upright" : "auto",
    };
  }

  async function run() {
    const used = settings();
    const [a, b] = photos;
    say(status, "matching …");
    stop.hidden = false;
    start.disabled = true;
    try {
      const body = form({ ...a.fields("a", "photo_a"), ...b.fields("b", "photo_b"), ...used });
      const found = await latest.ask("/match", { method: "POST", body });
      show(a, b, found, used);
    } catch (error) {
      say(status, error.name === "AbortError" ? "stopped" : error.message, error.name === "AbortError" ? "" : "bad");
    }
    stop.hidden = true;
    start.disabled = false;
  }

  function show(a, b, found, used) {
    const agreed = found.inliers.filter(Boolean).length;
    const kind = found.geometry.kind;
    say(status, kind ? `${agreed} of ${found.matches.length} matches agree on one ${KINDS[kind] || kind}${found.geometry.mirrored ? ", mirrored" : ""}` : `nothing is verified: ${counted(found.matches.length, "tentative match")}, but no geometry fits them`, kind ? "good" : "bad");
    output.hidden = false;
    view.show(a, b, {
      sizes: found.images.map((image) => image.size),
      pairs: found.matches,
      inliers: found.inliers,
      matrix: kind === "homography" ? found.geometry.model : null,
    });
    const rows = {
      photos: found.images.map((image) => `${image.path}: ${image.size.join(" x ")}, ${counted(image.keypoints, "keypoint")}`).join("; "),
      orientation: found.orientation,
      geometry: kind || "none",
      matches: found.matches.length,
      inliers: agreed,
      time: milliseconds(found.seconds),
    };
    numbers.replaceChildren(...Object.entries(rows).map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, String(value)))));
    saves.replaceChildren(
      h("button", { onclick: () => view.download("matches.png") }, "Save PNG"),
      h("button", { onclick: () => save("matches.json", JSON.stringify(found), "application/json") }, "Save JSON"),
      h("button", { onclick: () => save("match.py", snippet(a, b, used), "text/x-python") }, "Save Python"));
  }
}

function select(names, chosen) {
  return h("select", {}, ...names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
}

export function snippet(a, b, used) {
  const given = Object.entries(used)
    .filter(([name, value]) => value !== DEFAULTS[name])
    .map(([name, value]) => `, ${name}=${JSON.stringify(value)}`)
    .join("");
  return [
    "import hardnet", "",
    `result = hardnet.match(${JSON.stringify(a.name)}, ${JSON.stringify(b.name)}${given})`,
    "print(result)",
    'result.draw("matches.png")', "",
  ].join("\n");
}
