// The collection as a grid that holds only the visible photos, so that thousands scroll smoothly.

import { ask, h } from "/static/api.js";

const CELL = 132;
const CHUNK = 200;

export class Grid {
  constructor(choose) {
    this.choose = choose;
    this.space = h("div");
    this.element = h("div", { className: "grid", tabIndex: -1, role: "listbox", "aria-label": "Photos of the collection" }, this.space);
    this.cells = new Map();
    this.active = 0;
    this.element.addEventListener("scroll", () => this.#plan());
    this.element.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#plan()).observe(this.element);
  }

  async load(text = "") {
    this.text = text;
    this.chunks = new Map();
    this.total = 0;
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    const loaded = await this.#chunk(0);
    this.total = loaded.total;
    this.active = 0;
    this.#draw();
    return this.total;
  }

  #chunk(number) {
    if (!this.chunks.has(number)) {
      const query = new URLSearchParams({ offset: number * CHUNK, limit: CHUNK, text: this.text });
      this.chunks.set(number, ask(`/photos?${query}`));
    }
    return this.chunks.get(number);
  }

  #plan() {
    this.planned ??= requestAnimationFrame(() => {
      this.planned = null;
      this.#draw();
    });
  }

  #columns() {
    return Math.max(Math.floor(this.element.clientWidth / CELL), 2);
  }

  #draw() {
    if (!this.chunks || !this.element.clientWidth) return;
    const columns = this.#columns();
    const side = this.element.clientWidth / columns;
    this.space.style.height = `${Math.ceil(this.total / columns) * side}px`;
    const top = this.element.scrollTop;
    const first = Math.max(Math.floor(top / side) - 2, 0) * columns;
    const last = Math.min((Math.ceil((top + this.element.clientHeight) / side) + 2) * columns, this.total);
    for (const [i, cell] of this.cells) {
      if (i < first || i >= last) {
        cell.remove();
        this.cells.delete(i);
      }
    }
    for (let i = first; i < last; i += 1) {
      const cell = this.cells.get(i) || this.#cell(i);
      cell.style.width = cell.style.height = `${side}px`;
      cell.style.left = `${(i % columns) * side}px`;
      cell.style.top = `${Math.floor(i / columns) * side}px`;
    }
  }

  #cell(i) {
    const cell = h("button", { className: "cell", role: "option", tabIndex: i === this.active ? 0 : -1 });
    this.cells.set(i, cell);
    this.element.append(cell);
    this.#chunk(Math.floor(i / CHUNK)).then((loaded) => {
      const photo = loaded.photos[i % CHUNK];
      if (!photo || this.cells.get(i) !== cell) return;
      cell.title = photo.path;
      cell.setAttribute("aria-label", photo.name);
      cell.append(h("img", { src: `/photos/${photo.id}/thumbnail`, alt: "", loading: "lazy" }));
      cell.addEventListener("click", () => this.choose(photo));
    }).catch(() => {});
    return cell;
  }

  #key(event) {
    const columns = this.#columns();
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!step) return;
    event.preventDefault();
    this.active = Math.min(Math.max(this.active + step, 0), this.total - 1);
    const side = this.element.clientWidth / columns;
    const top = Math.floor(this.active / columns) * side;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    const below = top + side - this.element.clientHeight;
    if (below > this.element.scrollTop) this.element.scrollTop = below;
    this.#draw();
    for (const [i, cell] of this.cells) cell.tabIndex = i === this.active ? 0 : -1;
    this.cells.get(this.active)?.focus();
  }
}
