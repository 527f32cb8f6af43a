// Requests to the server, and small helpers for all tabs.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: is it running?");
  }
  if (!answer.ok) {
    const facts = await answer.json().catch(() => ({}));
    throw new Error(facts.detail || `${answer.status} ${answer.statusText}`);
  }
  return answer.json();
}

// One request at a time: a new one stops the previous one, on the server too.
export class Latest {
  async ask(path, options = {}) {
    this.stop();
    this.controller = new AbortController();
    return ask(path, { ...options, signal: this.controller.signal });
  }

  stop() {
    this.controller?.abort();
  }
}

export function form(fields) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== "") data.append(name, value);
  }
  return data;
}

export function say(element, words, kind = "") {
  element.textContent = words;
  element.className = `status ${kind}`;
}

export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** "1 photo", "2 photos", "3 matches". */
export function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : thing.endsWith("ch") ? "es" : "s"}`;
}

export function milliseconds(seconds) {
  return Object.entries(seconds)
    .filter(([, value]) => value >= 0.00005)
    .map(([stage, value]) => `${stage} ${(1000 * value).toFixed(1)} ms`)
    .join(", ");
}

export function picture(source) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("the picture cannot be shown"));
    image.src = source;
  });
}

// A photo of the user (a file) or of the index (an id), and how to show it.
export class Photo {
  constructor({ file = null, id = null, name, size = null }) {
    Object.assign(this, { file, id, name, size });
  }

  static async of(file, limits) {
    if (limits && file.size > limits.max_upload / 2) {
      throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(0)} MB: use a smaller photo`);
    }
    const photo = new Photo({ file, name: file.name });
    photo.url = URL.createObjectURL(file);
    try {
      photo.image = await picture(photo.url);
    } catch {
      // The server may be able to read a photo that the browser cannot show; if not, it says why.
      const answer = await fetch("/preview", { method: "POST", body: form({ file }) });
      if (!answer.ok) throw new Error((await answer.json()).detail);
      photo.url = URL.createObjectURL(await answer.blob());
      photo.image = await picture(photo.url);
    }
    return photo;
  }

  static async ofIndex(facts) {
    const photo = new Photo({ id: facts.id, name: facts.name || facts.path.split("/").slice(-2).join("/"), size: facts.size });
    photo.url = `/photos/${facts.id}/preview`;
    photo.image = await picture(photo.url);
    return photo;
  }

  fields(file, id) {
    return this.file ? { [file]: this.file } : { [id]: this.id };
  }
}

// A place to drop, paste or pick a photo.
export function dropZone(label, take) {
  const input = h("input", { type: "file", accept: "image/*,.pgm,.ppm,.tif,.tiff", "aria-label": label });
  const words = h("span", {}, label);
  const zone = h("div", { className: "zone" }, words, input);
  input.addEventListener("change", () => input.files[0] && take(input.files[0]));
  for (const name of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
    });
  }
  zone.show = (photo) => {
    zone.querySelector("img")?.remove();
    if (photo) zone.prepend(h("img", { src: photo.url, alt: photo.name }));
    words.textContent = photo ? photo.name : label;
  };
  return zone;
}

export function onPaste(panel, take) {
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file && !panel.hidden) take(file);
  });
}

// Show the progress of a job, which can be stopped, until it ends; returns its last facts.
export async function follow(job, { bar, stop, status }) {
  bar.hidden = stop.hidden = false;
  stop.onclick = () => ask(`/jobs/${job.id}`, { method: "DELETE" });
  const source = new EventSource(`/jobs/${job.id}/events`);
  const read = (event) => JSON.parse(event.data);
  try {
    return await new Promise((resolve, reject) => {
      source.addEventListener("progress", (event) => {
        const facts = read(event);
        bar.max = facts.total || 1;
        bar.value = facts.done;
        say(status, `${facts.what}: ${facts.done} of ${facts.total}`);
      });
      for (const name of ["done", "stopped"]) {
        source.addEventListener(name, (event) => resolve(read(event)));
      }
      source.addEventListener("failed", (event) => reject(new Error(read(event).problem)));
      source.onerror = () => reject(new Error("the server no longer reports progress"));
    });
  } finally {
    source.close();
    bar.hidden = stop.hidden = true;
  }
}

export function regionOverlay(size, corners) {
  const overlay = svg("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, preserveAspectRatio: "none" });
  for (const region of corners) {
    overlay.append(svg("polygon", { points: region.map(([x, y]) => `${x + 0.5},${y + 0.5}`).join(" ") }));
  }
  return overlay;
}
