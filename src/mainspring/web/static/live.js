import { absolute } from "./times.js";

// One stream of events. Elements with data-live are refreshed when an event matches, at most once a second; data-pause
// sets a longer interval for expensive ones.
const PAUSE = 1000;
const pause = () => Math.max(PAUSE, ...[...document.querySelectorAll("[data-pause]")].map((element) => Number(element.dataset.pause)));

const AGAIN = 5 * PAUSE;
const ROWS = "mainspring-rows";
const shownRows = (element) => [...element.querySelectorAll("[data-row]")].map((row) => encodeURIComponent(row.dataset.row)).join(",");

// Repeat one-time requests, such as for the next lines of a log, if they get no answer.
function again() {
  for (const kind of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(kind, ({ detail: { elt } }) => {
      if (!elt.getAttribute("hx-trigger")?.endsWith("again")) return;
      setTimeout(() => { if (elt.isConnected) htmx.trigger(elt, "again"); }, AGAIN);
    });
  }
}

// A refresh keeps what the viewer opened and selected. It also keeps the pager: the rows of a list stay the same, so the
// next page starts at the same position.
let isRefresh = false;

function keepState() {
  const { callbacks } = Idiomorph.defaults;
  callbacks.beforeAttributeUpdated = (name, element) =>
    !(name === "open" && element.matches("details")) && !(name === "checked" && element.matches(".pick, [data-pick-all]"));
  callbacks.beforeNodeMorphed = (element) => !(isRefresh && element.id === "pager");
}

// If the server is unreachable or has no data, the page shows since when, greys its numbers and explains
// a failed action, until any request succeeds.
const UNAVAILABLE = [502, 503, 504];
const isDisconnected = () => "disconnected" in document.body.dataset;

function connection() {
  const bar = document.getElementById("disconnected");
  if (!bar) return;
  const failed = ({ detail: { requestConfig, xhr } }) => {
    if (!isDisconnected()) {
      document.body.dataset.disconnected = "";
      bar.textContent = `Disconnected since ${absolute(new Date(), false)} – retrying`;
      bar.hidden = false;
    }
    if (requestConfig?.verb === "get" || isOurs(xhr)) return;
    const toast = document.createElement("div");
    toast.className = "toast is-bad";
    toast.setAttribute("role", "alert");
    const words = document.createElement("p");
    words.textContent = "The server did not answer. It is unknown whether the action was done: check before you repeat it.";
    toast.append(words);
    requestConfig.elt?.closest?.("dialog")?.close();
    document.getElementById("toasts").append(toast);
  };
  // Mainspring sets the target of its errors; do not insert those of a proxy into the page.
  const isOurs = (xhr) => Boolean(xhr?.getResponseHeader("hx-reswap"));
  // An action on many runs may take long.
  document.addEventListener("htmx:configRequest", ({ detail }) => { if (detail.verb !== "get") detail.timeout = 0; });
  for (const kind of ["htmx:sendError", "htmx:timeout"]) document.addEventListener(kind, failed);
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    if (UNAVAILABLE.includes(event.detail.xhr.status)) return failed(event);
    delete document.body.dataset.disconnected;
    bar.hidden = true;
  });
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if (detail.xhr.status >= 500 && !isOurs(detail.xhr)) detail.shouldSwap = false;
  });
}

export function live() {
  connection();
  again();
  keepState();
  const stream = document.body.dataset.stream;
  if (!stream || !document.querySelector("[data-live]")) return;
  let due = false;
  let last = 0;
  let timer = 0;

  const refresh = () => {
    timer = 0;
    if (document.hidden || document.querySelector("dialog[open]") || !getSelection().isCollapsed) {
      due = true;
      return;
    }
    due = false;
    last = Date.now();
    for (const element of document.querySelectorAll("[data-live]")) htmx.trigger(element, "live");
  };
  const soon = () => {
    if (!timer) timer = setTimeout(refresh, Math.max(0, last + pause() - Date.now()));
  };
  const about = (kind) =>
    [...document.querySelectorAll("[data-live]")].some((element) =>
      element.dataset.live.split(" ").some((word) => kind.startsWith(word)));

  const kinds = ["submitted", "queued", "started", "succeeded", "failed", "retried", "released", "lost", "cancelled",
    "skipped"].map((word) => `run.${word}`);
  let source = null;
  // Connect only while the tab is visible: browsers allow few connections to one host.
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(stream);
    for (const kind of [...kinds, "job.slo_missed", "job.slo_recovered", "gap"]) {
      source.addEventListener(kind, () => { if (kind === "gap" || about(kind)) soon(); });
    }
    source.addEventListener("open", () => { if (isDisconnected()) soon(); });
    source.addEventListener("error", () => soon());
  };
  const close = () => {
    source?.close();
    source = null;
  };
  open();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    open();
    soon();
  });
  // The server updates the rows that are shown, and counts the new ones.
  document.addEventListener("htmx:configRequest", ({ detail: { elt, headers } }) => {
    if (!elt.dataset.live) return;
    const rows = shownRows(elt);
    if (rows) headers[ROWS] = rows;
  });
  // A search replaced the list meanwhile: discard the answer.
  htmx.defineExtension("unless-gone", {
    transformResponse: (text, request, element) => (element.isConnected ? text : ""),
  });
  // Discard answers to requests of a previous page.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const asked = event.detail.requestConfig.elt;
    isRefresh = Boolean(asked.dataset?.live && event.detail.requestConfig.headers[ROWS]);
    if (!asked.dataset?.live) return;
    // Keep elements that were opened meanwhile.
    const busy = document.querySelector("dialog[open]");
    if (busy || event.detail.pathInfo.requestPath !== asked.getAttribute("hx-get")) event.detail.shouldSwap = false;
    // A click may have shown new rows while this refresh was on its way, which does not know them and would remove them.
    const isStale = (event.detail.requestConfig.headers[ROWS] ?? "") !== shownRows(asked);
    if (isStale) event.detail.shouldSwap = false;
    if (busy || isStale) due = true;
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  document.addEventListener("close", () => { if (due) soon(); }, true);
  setInterval(() => { if (due || isDisconnected()) soon(); }, 2 * PAUSE);
  // Refresh numbers without events as well.
  setInterval(soon, 15 * PAUSE);
}
