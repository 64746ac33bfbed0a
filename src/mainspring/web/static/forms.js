// Mark rejected fields: in the job form by its preview, in a dialog by the answer. A click on an example
// fills it in.
function clear(form) {
  for (const known of form.querySelectorAll("[aria-invalid]")) {
    known.removeAttribute("aria-invalid");
    known.removeAttribute("aria-errormessage");
  }
  form.querySelectorAll(".field-wrong").forEach((known) => known.remove());
}

// "retry.firstDelay" is shown at "retry", "quotas.jobs" at "jobs".
function fieldOf(form, wrong) {
  const parts = (wrong || "").split(/[.[]/).map((part) => CSS.escape(part));
  return [parts[0], parts.at(-1)].filter(Boolean)
    .flatMap((name) => [...form.querySelectorAll(`[data-field="${name}"], dialog [name="${name}"]`)])
    .find((one) => one.offsetParent);
}

function say(input, text) {
  const words = document.createElement("small");
  words.className = "field-wrong";
  words.id = `wrong-${input.name}`;
  words.setAttribute("aria-live", "polite");
  words.textContent = text;
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", words.id);
  input.insertAdjacentElement("afterend", words);
}

function mark(form) {
  clear(form);
  for (const { dataset } of document.querySelectorAll("#preview [data-wrong]")) {
    const input = fieldOf(form, dataset.wrong);
    // Do not mark fields that the user has not touched yet.
    if (input && (input.value || form.dataset.sent || input === document.activeElement)) say(input, dataset.words);
  }
}

function dialogs() {
  document.addEventListener("htmx:beforeRequest", ({ detail: { elt } }) => { if (elt.matches("dialog form")) clear(elt); });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const form = event.detail.requestConfig.elt;
    if (event.detail.xhr.status < 400 || !form.matches?.("dialog form")) return;
    const said = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html").querySelector("[data-wrong]");
    const input = said && fieldOf(form, said.dataset.wrong);
    // Otherwise show a toast.
    if (!input) return;
    event.detail.shouldSwap = false;
    say(input, said.dataset.words);
    input.focus();
  });
}

// The fields of the arguments are replaced with the task. Input is kept, and shown wherever a field has the same name.
function keepArguments() {
  const kept = new Map();
  document.addEventListener("htmx:beforeSwap", ({ target }) => {
    if (target.id !== "of-task") return;
    for (const input of target.querySelectorAll("[name]")) kept.set(input.name, input.value);
  });
  document.addEventListener("htmx:afterSwap", ({ target }) => {
    if (target.id !== "of-task") return;
    for (const input of document.querySelectorAll("#of-task [name]")) {
      if (!kept.get(input.name)) continue;
      input.value = kept.get(input.name);
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
  });
}

export function forms() {
  dialogs();
  const form = document.querySelector("[data-job-form]");
  if (!form) return;
  keepArguments();
  document.addEventListener("htmx:afterSwap", (event) => { if (event.target.id === "preview") mark(form); });
  form.addEventListener("htmx:afterRequest", (event) => {
    if (event.target === form && !event.detail.successful) {
      form.dataset.sent = "yes";
      // The form may be sent before any preview.
      htmx.trigger(form.querySelector("[hx-target='#preview']"), "change");
    }
  });
  for (const examples of form.querySelectorAll("[data-fills]")) {
    examples.hidden = false;
    examples.addEventListener("click", (event) => {
      const example = event.target.closest("[data-fill]");
      const input = form.querySelector(`[name="${CSS.escape(examples.dataset.fills)}"]`);
      if (!example || !input) return;
      input.value = example.dataset.fill;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }
}
