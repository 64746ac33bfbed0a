// Keys: "/" searches, j and k select rows, g and a letter open pages, "?" shows help.
export function keyboard() {
  let leading = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (Date.now() - leading < 1500) {
      leading = 0;
      const link = document.querySelector(`.nav-link[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
      return;
    }
    if (event.key === "g") leading = Date.now();
    else if (event.key === "?") document.getElementById("help")?.showModal();
    else if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { search.focus(); search.select(); event.preventDefault(); }
    } else if (event.key === "j" || event.key === "k") {
      const rows = [...document.querySelectorAll(".row-link")].filter((row) => row.offsetParent);
      const at = rows.indexOf(document.activeElement);
      const next = event.key === "j" ? Math.min(at + 1, rows.length - 1) : Math.max(at - 1, 0);
      rows[next]?.focus();
      rows[next]?.scrollIntoView({ block: "nearest" });
    }
  });
}
