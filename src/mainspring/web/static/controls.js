// Theme, dialogs, toasts, copying.
const TOLD = "mainspring.told";
const THEMES = ["auto", "light", "dark"];

function theme() {
  const button = document.querySelector("[data-theme-switch]");
  if (!button) return;
  const now = () => document.documentElement.dataset.theme || "auto";
  const label = () => { button.setAttribute("aria-label", `Theme: ${now()}`); button.title = `Theme: ${now()}`; };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("mainspring.theme", next); } catch { /* not kept */ }
    label();
    document.dispatchEvent(new Event("theme"));
  });
  label();
}

// A toast stays while the pointer or the focus is on it, and its whole lifetime after that. One with a button stays longer.
function expire(toast) {
  const lifetime = toast.querySelector("button") ? 20000 : toast.classList.contains("is-bad") ? 12000 : 7000;
  let timer = 0;
  const start = () => {
    clearTimeout(timer);
    if (!toast.matches(":hover, :focus-within")) timer = setTimeout(() => toast.remove(), lifetime);
  };
  for (const kind of ["pointerenter", "focusin"]) toast.addEventListener(kind, () => clearTimeout(timer));
  // The focus moves after the event.
  for (const kind of ["pointerleave", "focusout"]) toast.addEventListener(kind, () => setTimeout(start));
  start();
}

function toasts() {
  const place = document.getElementById("toasts");
  if (!place) return;
  // Append at the end of the page: the clicked element may be gone by then.
  new MutationObserver(() => place.append(...document.querySelectorAll("body > .toast"))).observe(document.body, { childList: true });
  new MutationObserver((changes) => {
    for (const toast of changes.flatMap((change) => [...change.addedNodes])) {
      if (toast.nodeType !== 1) continue;
      htmx.process(toast);
      // Show above everything, including an open dialog.
      if (place.matches(":popover-open")) place.hidePopover();
      place.showPopover();
      expire(toast);
    }
  }).observe(place, { childList: true });
  // If the answer is another page, that page shows the message.
  document.addEventListener("htmx:beforeOnLoad", ({ detail: { xhr } }) => {
    if (!xhr.getResponseHeader("HX-Redirect") || !xhr.responseText) return;
    try { sessionStorage.setItem(TOLD, xhr.responseText); } catch { /* not told */ }
  });
  try {
    place.insertAdjacentHTML("beforeend", sessionStorage.getItem(TOLD) ?? "");
    sessionStorage.removeItem(TOLD);
  } catch { /* nothing is kept */ }
}

// While the user types, only the first change adds a step to the browser's history.
function typing() {
  let began = false;
  document.addEventListener("focusin", (event) => { if (event.target.matches("[data-search]")) began = false; });
  document.addEventListener("htmx:beforeHistoryUpdate", (event) => {
    const typed = event.detail.requestConfig?.triggeringEvent?.target?.matches?.("[data-search]");
    if (typed && began) event.detail.history.type = "replace";
    began = Boolean(typed);
  });
}

export function controls() {
  theme();
  toasts();
  typing();
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) {
      event.preventDefault();
      document.getElementById(opener.dataset.dialog)?.showModal();
    }
    if (event.target.closest("[data-close]") || event.target.nodeName === "DIALOG") {
      event.target.closest("dialog")?.close();
    }
    const copied = event.target.closest("[data-copy]");
    if (copied) navigator.clipboard?.writeText(copied.dataset.copy).then(() => {
      const words = copied.textContent;
      copied.textContent = "Copied";
      setTimeout(() => { copied.textContent = words; }, 1200);
    });
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-pick-all]")) return;
    for (const box of event.target.closest("table").querySelectorAll(".pick")) box.checked = event.target.checked;
  });
  // Omit blank fields from the address.
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb !== "get") return;
    for (const [name, value] of [...event.detail.formData.entries()]) {
      if (!value) event.detail.formData.delete(name);
    }
  });
  // Actions of dialogs and of toasts are answered by a toast.
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    event.target.closest("dialog")?.close();
    event.target.closest(".toast")?.remove();
  });
}
