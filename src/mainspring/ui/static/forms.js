// The form of a job: what the preview refuses is marked where it was typed; examples are filled in by a click.
function mark(form) {
  const preview = document.getElementById("preview");
  for (const known of form.querySelectorAll("[aria-invalid]")) {
    known.removeAttribute("aria-invalid");
    known.removeAttribute("aria-errormessage");
  }
  form.querySelectorAll(".field-wrong").forEach((known) => known.remove());
  // "retry.firstDelay" is shown at "retry".
  const name = (preview?.dataset.wrong || "").split(".")[0];
  const input = name && [...form.querySelectorAll(`[data-field="${CSS.escape(name)}"]`)].find((one) => one.offsetParent);
  // A field that was not touched yet is not wrong: nobody has got to it.
  if (!input || (!input.value && !form.dataset.sent && input !== document.activeElement)) return;
  const words = document.createElement("small");
  words.className = "field-wrong";
  words.id = "field-wrong";
  words.textContent = preview.dataset.words.replace(`${preview.dataset.wrong}: `, "");
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", words.id);
  input.insertAdjacentElement("afterend", words);
}

export function forms() {
  const form = document.querySelector("[data-job-form]");
  if (!form) return;
  document.addEventListener("htmx:afterSwap", (event) => { if (event.target.id === "preview") mark(form); });
  form.addEventListener("htmx:afterRequest", (event) => {
    if (event.target === form && !event.detail.successful) { form.dataset.sent = "yes"; mark(form); }
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
