// Lets a reader send the requests of this page to the server that shows it. The key stays in its field: it is read when
// a request is sent, and stored nowhere.
"use strict";
(() => {
  // The page may be mounted below a path.
  const base = location.pathname.replace(/docs\/?$/, "");
  const key = document.getElementById("key");
  let loading;
  document.getElementById("access").hidden = false;
  key.form.addEventListener("submit", (event) => event.preventDefault());

  const make = (tag, text = "", given = {}) => Object.assign(document.createElement(tag), { textContent: text }, given);

  async function loadDocument() {
    const answer = await fetch(`${base}openapi.json`, { credentials: "omit" });
    if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
    return answer.json();
  }

  function resolve(schema, known) {
    const name = schema && schema.$ref && schema.$ref.split("/").pop();
    return name ? known[name] : schema || {};
  }

  // A body with the required fields, for operations without an example.
  function sketch(schema, known, depth = 0) {
    const found = resolve(schema, known);
    if (found.examples) return found.examples[0];
    if (found.default !== undefined) return found.default;
    if (found.enum) return found.enum[0];
    if (found.anyOf) return sketch(found.anyOf[0], known, depth);
    if (found.type === "object" && depth < 3) {
      const fields = (found.required || []).map((name) => [name, sketch(found.properties[name], known, depth + 1)]);
      return Object.fromEntries(fields);
    }
    return { string: "", integer: 0, number: 0, boolean: false, array: [] }[found.type] ?? null;
  }

  function field(parameter) {
    const label = make("label");
    label.title = parameter.description || parameter.schema.description || "";
    const name = make("span", parameter.name + (parameter.required ? " *" : ""));
    const kinds = parameter.schema.enum;
    const input = kinds ? make("select") : make("input", "", { type: "text", autocomplete: "off", spellcheck: false });
    if (kinds) [parameter.required ? null : "", ...kinds].forEach((kind) => kind === null || input.append(make("option", kind)));
    else if (parameter.schema.default !== undefined) input.placeholder = String(parameter.schema.default);
    input.name = parameter.name;
    input.required = Boolean(parameter.required);
    input.dataset.in = parameter.in;
    label.append(name, input);
    return label;
  }

  function build(section, specification) {
    const { method, path } = section.dataset;
    const operation = specification.paths[path][method];
    const form = make("form", "", { className: "try" });
    (operation.parameters || []).forEach((parameter) => form.append(field(parameter)));
    const content = operation.requestBody && operation.requestBody.content["application/json"];
    if (content) {
      const label = make("label");
      const example = content.example ?? sketch(content.schema, specification.components.schemas);
      const text = JSON.stringify(example, null, 2);
      label.append(make("span", "Body (JSON)"), make("textarea", "", { name: "body", value: text, spellcheck: false }));
      label.lastChild.rows = Math.min(text.split("\n").length + 1, 14);
      form.append(label);
    }
    const send = make("button", `Send ${method.toUpperCase()} request`, { type: "submit" });
    const shown = make("div", "", { className: "answer", ariaLive: "polite" });
    form.append(send, shown);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      try {
        await request(form, method, path, shown);
      } finally {
        send.disabled = false;
      }
    });
    return form;
  }

  function address(form, path) {
    const query = new URLSearchParams();
    let filled = path;
    for (const input of form.querySelectorAll("[data-in]")) {
      if (input.dataset.in === "path") filled = filled.replace(`{${input.name}}`, encodeURIComponent(input.value));
      else if (input.dataset.in === "query" && input.value !== "") query.append(input.name, input.value);
    }
    const text = query.toString();
    return base + filled.slice(1) + (text ? `?${text}` : "");
  }

  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

  function describe(method, target, headers, body) {
    const parts = [`curl -X ${method.toUpperCase()} ${quote(location.origin + target)}`];
    for (const [name, value] of Object.entries(headers)) {
      // The key itself is not shown.
      parts.push(name === "authorization" ? '-H "Authorization: Bearer $MAINSPRING_KEY"' : `-H ${quote(`${name}: ${value}`)}`);
    }
    if (body !== undefined) parts.push(`-d ${quote(body)}`);
    return parts.join(" \\\n  ");
  }

  async function request(form, method, path, shown) {
    const target = address(form, path);
    const headers = {};
    if (key.value.trim()) headers.authorization = `Bearer ${key.value.trim()}`;
    form.querySelectorAll('[data-in="header"]').forEach((input) => input.value && (headers[input.name] = input.value));
    const body = form.elements.body ? form.elements.body.value : undefined;
    if (body !== undefined) headers["content-type"] = "application/json";
    shown.replaceChildren(make("pre", describe(method, target, headers, body)));
    const began = performance.now();
    try {
      const given = { method: method.toUpperCase(), headers, body, credentials: "omit", cache: "no-store" };
      const answer = await fetch(target, given);
      const text = await answer.text();
      const took = Math.round(performance.now() - began);
      const status = make("p", `${answer.status} ${answer.statusText} · ${took} ms`, { className: answer.ok ? "good" : "bad" });
      shown.append(status, make("pre", pretty(text, answer.headers.get("content-type") || "")));
      if (answer.status === 401 && !key.value) shown.append(make("p", "Enter an API key at the top of this page."));
    } catch (error) {
      shown.append(make("p", `The server did not answer: ${error.message}`, { className: "bad" }));
    }
  }

  function pretty(text, kind) {
    if (!kind.includes("json")) return text || "(empty)";
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text;
    }
  }

  for (const section of document.querySelectorAll("section[data-path]")) {
    const open = make("button", "Try it", { type: "button", className: "open" });
    open.addEventListener("click", async () => {
      const form = section.querySelector("form");
      if (form) {
        form.hidden = !form.hidden;
        return;
      }
      try {
        loading ??= loadDocument();
        section.append(build(section, await loading));
        section.querySelector("form").querySelector("input, textarea, button").focus();
      } catch (error) {
        loading = undefined;
        section.append(make("p", `The description of the API cannot be loaded: ${error.message}`, { className: "bad" }));
      }
    });
    section.querySelector("h3").after(open);
  }
})();
