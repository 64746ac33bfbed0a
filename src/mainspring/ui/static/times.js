// Times in the words of the viewer: relative ones go on, absolute ones are in the chosen zone. Says the same as words.py.
const KEY = "mainspring.zone";

export function zone() {
  try { return localStorage.getItem(KEY) || undefined; } catch { return undefined; }
}

// By its name; the server lays out days by it.
export function named() {
  return zone() || Intl.DateTimeFormat().resolvedOptions().timeZone;
}

function tellServer() {
  const base = (document.body.dataset.stream || "/live").replace(/live$/, "");
  document.cookie = `mainspring_zone=${encodeURIComponent(named())}; path=${base}; max-age=31536000; samesite=lax`;
}

export function absolute(date, withDay = true) {
  const parts = new Intl.DateTimeFormat("en-CA", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23", timeZone: zone(), timeZoneName: "short",
  }).formatToParts(date).reduce((all, part) => ({ ...all, [part.type]: part.value }), {});
  const clock = `${parts.hour}:${parts.minute}:${parts.second}`;
  return withDay ? `${parts.year}-${parts.month}-${parts.day} ${clock} ${parts.timeZoneName}` : clock;
}

function span(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  }
  return `${Math.floor(seconds)}s`;
}

export function relative(date, now = Date.now()) {
  const distance = (now - date.getTime()) / 1000;
  if (Math.abs(distance) < 1) return "now";
  return distance > 0 ? `${span(distance)} ago` : `in ${span(-distance)}`;
}

export function tell(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const whole = absolute(date);
    const words = element.dataset.style === "absolute" ? whole
      : element.dataset.style === "clock" ? absolute(date, false) : relative(date);
    if (element.textContent !== words) element.textContent = words;
    if (element.title !== whole) element.title = whole;
  }
}

export function times() {
  // One in the sidebar, one in the sheet of a phone.
  const buttons = document.querySelectorAll("[data-zone-switch]");
  const label = () => {
    for (const button of buttons) {
      (button.querySelector("[data-zone-words]") ?? button).textContent = zone() === "UTC" ? "UTC" : "Local";
    }
  };
  for (const button of buttons) button.addEventListener("click", () => {
    try { zone() ? localStorage.removeItem(KEY) : localStorage.setItem(KEY, "UTC"); } catch { return; }
    label();
    tell();
    tellServer();
    document.dispatchEvent(new Event("zone"));
  });
  label();
  tell();
  tellServer();
  setInterval(tell, 1000);
  document.addEventListener("htmx:afterSwap", () => tell());
}
