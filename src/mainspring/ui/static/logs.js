// A log follows its end while one looks at the end; the search marks lines. New lines come by themselves (hx-get).
export function logs() {
  const log = document.querySelector("[data-log]");
  if (!log) return;
  let follows = true;
  const end = () => { if (follows) log.scrollTop = log.scrollHeight; };
  log.addEventListener("scroll", () => { follows = log.scrollHeight - log.scrollTop - log.clientHeight < 24; });
  const search = document.querySelector("[data-log-search]");
  const sift = () => {
    const wanted = (search?.value || "").toLowerCase();
    for (const line of log.querySelectorAll(".line")) {
      line.hidden = Boolean(wanted) && !line.textContent.toLowerCase().includes(wanted);
    }
  };
  search?.addEventListener("input", sift);
  log.addEventListener("htmx:afterSettle", () => { sift(); end(); });
  end();
}
