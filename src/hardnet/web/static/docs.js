// The API, from its OpenAPI description.

import { ask, h } from "/static/api.js";

const schema = await ask("/openapi.json");
const api = document.getElementById("api");
const example = `curl -F a=@left.jpg -F b=@right.jpg ${location.origin}/match`;
api.append(
  h("p", {}, "The page itself uses only these requests. An error has one sentence, in ", h("code", {}, "detail"), "."),
  h("pre", {}, example));
for (const [path, methods] of Object.entries(schema.paths)) {
  for (const [method, facts] of Object.entries(methods)) api.append(operation(path, method, facts));
}
api.append(h("h1", {}, "Objects"));
for (const [name, facts] of Object.entries(schema.components.schemas)) {
  if (name.startsWith("Body_")) continue;
  const section = h("article", { className: "group" }, h("h2", {}, name), h("p", {}, facts.description || ""), fields(facts));
  section.id = name;
  api.append(section);
}

function operation(path, method, facts) {
  const section = h("article", { className: "group" },
    h("h2", {}, `${method.toUpperCase()} ${path}`), h("p", {}, facts.description || facts.summary || ""));
  const rows = (facts.parameters || []).map((one) => row(one.name, one.schema, one.required, one.description));
  const content = facts.requestBody?.content || {};
  for (const [kind, body] of Object.entries(content)) {
    section.append(h("p", { className: "hint" }, kind));
    const given = resolve(body.schema);
    for (const [name, one] of Object.entries(given.properties || {})) {
      rows.push(row(name, one, (given.required || []).includes(name), one.description));
    }
  }
  if (rows.length) section.append(h("div", { className: "tables" }, h("table", { className: "numbers" }, ...rows)));
  for (const [status, answer] of Object.entries(facts.responses)) {
    if (Number(status) < 300) {
      const kinds = Object.entries(answer.content || {});
      section.append(h("p", {}, `${status}: `, ...kinds.flatMap(([kind, one]) => [kind, " ", typeOf(one.schema)])));
    }
  }
  return section;
}

function fields(facts) {
  const rows = Object.entries(facts.properties || {}).map(([name, one]) => row(name, one, (facts.required || []).includes(name), one.description));
  return h("div", { className: "tables" }, h("table", { className: "numbers" }, ...rows));
}

function row(name, one, required, words) {
  const limits = one?.default !== undefined ? `default ${JSON.stringify(one.default)}` : required ? "required" : "";
  return h("tr", {}, h("th", {}, name), h("td", {}, typeOf(one)), h("td", {}, limits), h("td", {}, words || ""));
}

function resolve(one) {
  return one?.$ref ? schema.components.schemas[one.$ref.split("/").pop()] : one || {};
}

function typeOf(one) {
  if (!one) return "";
  if (one.$ref) {
    const name = one.$ref.split("/").pop();
    return h("a", { href: `#${name}` }, name);
  }
  if (one.anyOf) return h("span", {}, ...one.anyOf.flatMap((each, i) => (i ? [" or ", typeOf(each)] : [typeOf(each)])));
  if (one.type === "array" && one.items) return h("span", {}, "list of ", typeOf(one.items));
  return one.contentMediaType || one.format === "binary" ? "file" : one.type || "any";
}
