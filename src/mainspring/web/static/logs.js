// A log starts with its last lines and follows its end while that is visible. New lines are loaded (hx-get) in
// .lines groups; the oldest of very many are removed unless the user requested them. The search hides lines.
const MOST = 5000;

export function logs() {
  const log = document.querySelector("[data-log]");
  if (!log) return;
  const search = document.querySelector("[data-log-search]");
  const found = document.querySelector("[data-log-found]");
  let follows = true;
  let top = 0;
  let below = 0;
  const fresh = new Set();

  const sift = (parts) => {
    const wanted = search.value.toLowerCase();
    for (const part of parts) {
      for (const line of part.children) line.hidden = Boolean(wanted) && !line.textContent.toLowerCase().includes(wanted);
    }
    const shown = wanted ? log.querySelectorAll(".line:not([hidden])").length : 0;
    const words = wanted ? `${shown} of ${log.querySelectorAll(".line").length} lines shown` : "";
    if (found.textContent !== words) found.textContent = words;
  };
  const drop = () => {
    const earlier = log.querySelector(".earlier");
    const parts = [...log.querySelectorAll(".lines")];
    let lines = parts.reduce((sum, part) => sum + part.childElementCount, 0);
    if (!follows || lines <= MOST || earlier.matches(".htmx-request")) return;
    while (lines > MOST && parts.length > 1 && !("wanted" in parts[0].dataset)) {
      const oldest = parts.shift();
      lines -= oldest.childElementCount;
      oldest.remove();
      earlier.hidden = false;
      earlier.elements.before.value = parts[0].dataset.first;
    }
  };
  const end = () => {
    if (!follows) return;
    log.scrollTop = log.scrollHeight;
    top = log.scrollTop;
  };
  // Run once per frame for all new lines.
  const soon = (parts) => {
    if (!fresh.size) requestAnimationFrame(() => {
      sift(fresh);
      fresh.clear();
      drop();
      end();
    });
    for (const part of parts) fresh.add(part);
  };

  log.addEventListener("scroll", () => {
    // Decide later: the end may be far only because lines were added. Scrolling back means reading;
    // fewer lines after a search do not.
    const left = log.scrollHeight - log.scrollTop - log.clientHeight;
    if (log.scrollTop < top) follows &&= left < 2;
    else if (left < 24) follows = true;
    top = log.scrollTop;
  });
  search.addEventListener("input", () => soon(log.querySelectorAll(".lines")));
  log.addEventListener("htmx:beforeSwap", (event) => {
    if (event.target.matches(".earlier")) below = log.scrollHeight - log.scrollTop;
  });
  log.addEventListener("htmx:afterSwap", ({ target }) => {
    if (!target.matches(".lines")) return;
    soon([target]);
    // Keep the visible lines in place.
    if ("wanted" in target.dataset) log.scrollTop = log.scrollHeight - below;
  });
  end();
}
