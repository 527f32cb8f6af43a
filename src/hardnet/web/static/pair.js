// Two photos and their matches: lines on a canvas, and one photo fading into the other.

import { h, save } from "/static/api.js";

const GAP = 12;
const NEAR = 24;

export class PairView {
  constructor() {
    this.canvas = h("canvas", { tabIndex: 0, role: "img" });
    this.hint = h("p", { className: "hint" }, "Hover or press the arrow keys to see one pair; zoom with the wheel or + and −; drag to move; 0 shows all.");
    this.slider = h("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": "Fade from the first photo to the second" });
    this.fade = h("div", { className: "fade" });
    this.fadeRow = h("div", { className: "row" }, h("span", {}, "first"), this.slider, h("span", {}, "second"));
    this.outliers = h("input", { type: "checkbox" });
    this.element = h("div", { className: "pair" }, this.canvas,
      h("div", { className: "row" }, h("label", {}, this.outliers, " also matches that do not agree")),
      this.hint, this.fadeRow, this.fade);
    this.chosen = -1;
    this.outliers.addEventListener("change", () => this.draw());
    this.slider.addEventListener("input", () => this.#blend());
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    this.canvas.addEventListener("pointerdown", (event) => {
      this.held = this.#place(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", () => { this.held = null; });
    this.canvas.addEventListener("pointerleave", () => this.choose(-1));
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.#zoom(Math.exp(-event.deltaY / 400), this.#place(event));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#layout()).observe(this.canvas);
  }

  // pairs: [x1, y1, x2, y2]; inliers: booleans; matrix: 3x3 from a to b, or null.
  show(a, b, { sizes, pairs, inliers, matrix }) {
    Object.assign(this, { photos: [a, b], sizes, pairs, inliers, matrix });
    this.zoom = 1;
    this.centre = sizes.map(([width, height]) => [width / 2, height / 2]);
    this.chosen = -1;
    const agreed = inliers.filter(Boolean).length;
    this.canvas.setAttribute("aria-label", `${agreed} of ${pairs.length} matches between ${a.name} and ${b.name} agree`);
    this.#layout();
    this.#fadeInto();
  }

  #layout() {
    if (!this.photos) return;
    const width = Math.max(this.canvas.clientWidth, 200);
    this.stacked = width < 620;
    const each = this.stacked ? width : (width - GAP) / 2;
    const heights = this.sizes.map(([w, t]) => Math.min((each * t) / w, this.stacked ? 320 : 620));
    const height = this.stacked ? heights[0] + heights[1] + GAP : Math.max(...heights);
    this.boxes = this.stacked
      ? [[0, 0, width, heights[0]], [0, heights[0] + GAP, width, heights[1]]]
      : [[0, 0, each, height], [each + GAP, 0, each, height]];
    const density = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * density) || this.canvas.height !== Math.round(height * density)) {
      this.canvas.width = Math.round(width * density);
      this.canvas.height = Math.round(height * density);
      this.canvas.style.height = `${height}px`;
    }
    this.density = density;
    this.draw();
    this.#blend();
  }

  #scale(side) {
    const [, , width, height] = this.boxes[side];
    return this.zoom * Math.min(width / this.sizes[side][0], height / this.sizes[side][1]);
  }

  #toScreen(side, x, y) {
    const [left, top, width, height] = this.boxes[side];
    const scale = this.#scale(side);
    const [cx, cy] = this.centre[side];
    return [left + width / 2 + (x + 0.5 - cx) * scale, top + height / 2 + (y + 0.5 - cy) * scale];
  }

  #toPhoto(side, x, y) {
    const [left, top, width, height] = this.boxes[side];
    const scale = this.#scale(side);
    const [cx, cy] = this.centre[side];
    return [(x - left - width / 2) / scale + cx - 0.5, (y - top - height / 2) / scale + cy - 0.5];
  }

  #place(event) {
    const bounds = this.canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  }

  #side([x, y]) {
    const [, , width, height] = this.boxes[0];
    return this.stacked ? Number(y > height + GAP / 2) : Number(x > width + GAP / 2);
  }

  #shown() {
    return this.pairs.map((_, i) => i).filter((i) => this.outliers.checked || this.inliers[i]);
  }

  draw() {
    if (!this.boxes) return;
    const context = this.canvas.getContext("2d");
    context.setTransform(this.density, 0, 0, this.density, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.photos.forEach((photo, side) => {
      context.save();
      context.beginPath();
      context.rect(...this.boxes[side]);
      context.clip();
      const [x, y] = this.#toScreen(side, -0.5, -0.5);
      const scale = this.#scale(side);
      context.drawImage(photo.image, x, y, this.sizes[side][0] * scale, this.sizes[side][1] * scale);
      context.restore();
    });
    for (const i of this.#shown()) this.#line(context, i, this.chosen < 0 ? 0.7 : 0.15);
    if (this.chosen >= 0) this.#line(context, this.chosen, 1, 3);
  }

  #line(context, i, alpha, width = 1.2) {
    const [x1, y1, x2, y2] = this.pairs[i];
    const [w, t] = this.sizes[0];
    const ends = [this.#toScreen(0, x1, y1), this.#toScreen(1, x2, y2)];
    const outside = ends.some(([x, y], side) => {
      const [left, top, right, bottom] = this.boxes[side];
      return x < left || y < top || x > left + right || y > top + bottom;
    });
    if (outside && i !== this.chosen) return;
    context.globalAlpha = this.inliers[i] ? alpha : alpha * 0.5;
    // The colour says where in the first photo a match begins.
    const colour = this.inliers[i] ? `hsl(${(330 * x1) / w} 85% ${45 + (25 * y1) / t}%)` : "#c22";
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(...ends[0]);
    context.lineTo(...ends[1]);
    context.stroke();
    for (const [x, y] of ends) {
      context.beginPath();
      context.arc(x, y, width > 2 ? 7 : 2.2, 0, 7);
      if (width > 2) context.stroke();
      else context.fill();
    }
    context.globalAlpha = 1;
  }

  choose(i) {
    if (i === this.chosen) return;
    this.chosen = i;
    if (i >= 0) {
      const [x1, y1, x2, y2] = this.pairs[i].map((value) => value.toFixed(1));
      this.hint.textContent = `match ${i + 1}: (${x1}, ${y1}) and (${x2}, ${y2})`;
    }
    this.draw();
  }

  #nearest(place) {
    const side = this.#side(place);
    let best = -1;
    let least = NEAR * NEAR;
    for (const i of this.#shown()) {
      const [x, y] = this.#toScreen(side, ...this.pairs[i].slice(2 * side, 2 * side + 2));
      const distance = (x - place[0]) ** 2 + (y - place[1]) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  #move(event) {
    if (!this.boxes) return;
    const place = this.#place(event);
    if (!this.held) {
      this.choose(this.#nearest(place));
      return;
    }
    this.centre = this.centre.map(([x, y], side) => {
      const scale = this.#scale(side);
      return [x - (place[0] - this.held[0]) / scale, y - (place[1] - this.held[1]) / scale];
    });
    this.held = place;
    this.draw();
  }

  // Where a point of one photo lies in the other: by the geometry, or by the nearest match.
  #counterpart(side, [x, y]) {
    if (this.matrix && side === 0) return project(this.matrix, x, y);
    if (this.matrix) return project(inverse(this.matrix), x, y);
    let best = null;
    let least = Infinity;
    this.pairs.forEach((pair, i) => {
      const distance = (pair[2 * side] - x) ** 2 + (pair[2 * side + 1] - y) ** 2;
      if (this.inliers[i] && distance < least) [best, least] = [pair, distance];
    });
    return best ? best.slice(2 - 2 * side, 4 - 2 * side) : this.centre[1 - side];
  }

  #zoom(factor, place) {
    if (!this.boxes) return;
    const before = this.zoom;
    const side = this.#side(place);
    const points = [];
    points[side] = this.#toPhoto(side, ...place);
    points[1 - side] = this.#counterpart(side, points[side]);
    this.zoom = Math.min(Math.max(this.zoom * factor, 1), 40);
    const ratio = before / this.zoom;
    this.centre = this.centre.map(([x, y], s) => [
      points[s][0] + (x - points[s][0]) * ratio,
      points[s][1] + (y - points[s][1]) * ratio,
    ]);
    if (this.zoom === 1) this.centre = this.sizes.map(([w, t]) => [w / 2, t / 2]);
    this.draw();
  }

  #key(event) {
    const shown = this.#shown();
    const middle = this.boxes && [this.boxes[0][2] / 2, this.boxes[0][3] / 2];
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && shown.length) {
      const at = shown.indexOf(this.chosen);
      this.choose(shown[(at + step + shown.length) % shown.length]);
    } else if (event.key === "+" || event.key === "=") this.#zoom(1.25, middle);
    else if (event.key === "-") this.#zoom(0.8, middle);
    else if (event.key === "0") this.#zoom(0, middle);
    else if (event.key === "Escape") this.choose(-1);
    else return;
    event.preventDefault();
  }

  #fadeInto() {
    this.fadeRow.hidden = this.fade.hidden = !this.matrix;
    this.fade.replaceChildren();
    if (!this.matrix) return;
    this.fade.append(...this.photos.map((photo, side) => {
      const image = h("img", { src: photo.url, alt: "" });
      image.style.width = `${this.sizes[side][0]}px`;
      image.style.height = `${this.sizes[side][1]}px`;
      return image;
    }));
    this.#blend();
  }

  #blend() {
    const [first, second] = this.fade.children;
    if (!second) return;
    const [width, height] = this.sizes[0];
    const scale = Math.min(this.element.clientWidth / width, 620 / height) || 1;
    this.fade.style.height = `${height * scale}px`;
    this.fade.style.width = `${width * scale}px`;
    first.style.transform = `scale(${scale})`;
    // From pixels of b to pixels of a to the screen, where centres of pixels lie at halves.
    const m = multiply([[scale, 0, scale / 2], [0, scale, scale / 2], [0, 0, 1]],
      multiply(inverse(this.matrix), [[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]]));
    const columns = [m[0][0], m[1][0], 0, m[2][0], m[0][1], m[1][1], 0, m[2][1], 0, 0, 1, 0, m[0][2], m[1][2], 0, m[2][2]];
    second.style.transform = `matrix3d(${columns.join(",")})`;
    second.style.opacity = this.slider.value / 100;
  }

  download(name) {
    this.choose(-1);
    this.canvas.toBlob((blob) => save(name, blob), "image/png");
  }
}

export function square(transform) {
  return transform && [...transform, [0, 0, 1]];
}

function project(m, x, y) {
  const [u, v, w] = m.map((row) => row[0] * x + row[1] * y + row[2]);
  return [u / w, v / w];
}

function multiply(a, b) {
  return a.map((row) => [0, 1, 2].map((j) => row.reduce((sum, value, i) => sum + value * b[i][j], 0)));
}

export function inverse(m) {
  const [[a, b, c], [d, e, f], [g, i, j]] = m;
  const rows = [
    [e * j - f * i, c * i - b * j, b * f - c * e],
    [f * g - d * j, a * j - c * g, c * d - a * f],
    [d * i - e * g, b * g - a * i, a * e - b * d],
  ];
  const determinant = a * rows[0][0] + b * rows[1][0] + c * rows[2][0];
  return rows.map((row) => row.map((value) => value / determinant));
}

export function outline(matrix, [width, height]) {
  const corners = [[-0.5, -0.5], [width - 0.5, -0.5], [width - 0.5, height - 0.5], [-0.5, height - 0.5]];
  return corners.map(([x, y]) => project(matrix, x, y));
}
