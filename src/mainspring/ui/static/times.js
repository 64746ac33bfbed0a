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

// To make one takes longer than to use it a hundred times.
const formats = new Map();

function format() {
  const name = zone();
  if (!formats.has(name)) formats.set(name, new Intl.DateTimeFormat("en-CA", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23", timeZone: name, timeZoneName: "short",
  }));
  return formats.get(name);
}

function read(date, by) {
  const parts = {};
  for (const part of by.formatToParts(date)) parts[part.type] = part.value;
  const clock = `${parts.hour}:${parts.minute}:${parts.second}`;
  return { clock, absolute: `${parts.year}-${parts.month}-${parts.day} ${clock} ${parts.timeZoneName}` };
}

export function absolute(date, withDay = true) {
  const { clock, absolute } = read(date, format());
  return withDay ? absolute : clock;
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

function say(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

export function tell(root = document) {
  const by = format();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const known = read(date, by);
    say(element, known[element.dataset.style] ?? relative(date));
    if (element.title !== known.absolute) element.title = known.absolute;
  }
}

// The others do not change by themselves.
function goOn() {
  for (const element of document.querySelectorAll("time[datetime]:not([data-style])")) {
    say(element, relative(new Date(element.dateTime)));
  }
}

// What came since the last picture, once: of one answer every element is told of.
const fresh = new Set();

function soon({ target }) {
  if (!fresh.size) requestAnimationFrame(() => {
    for (const root of fresh) if (root.isConnected) tell(root);
    fresh.clear();
  });
  fresh.add(target);
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
  setInterval(goOn, 1000);
  document.addEventListener("htmx:afterSwap", soon);
}
