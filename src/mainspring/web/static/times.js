// Times for the viewer: relative ones keep counting, absolute ones are in the chosen zone. Same format as formatting.py.
const KEY = "mainspring.zone";

export function zone() {
  try { return localStorage.getItem(KEY) || undefined; } catch { return undefined; }
}

// Keep the zone by its name; the server uses it for the limits of days.
export function named() {
  return zone() || Intl.DateTimeFormat().resolvedOptions().timeZone;
}

function tellServer() {
  const base = (document.body.dataset.stream || "/live").replace(/live$/, "");
  document.cookie = `mainspring_zone=${encodeURIComponent(named())}; path=${base}; max-age=31536000; samesite=lax`;
}

// Cached, because creating one is slow.
const formats = new Map();

function partsOf(date) {
  const at = zone();
  if (!formats.has(at)) formats.set(at, new Intl.DateTimeFormat("en-CA", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23", timeZone: at, timeZoneName: "short",
  }));
  const parts = {};
  for (const part of formats.get(at).formatToParts(date)) parts[part.type] = part.value;
  return parts;
}

function clockOf(parts) {
  return `${parts.hour}:${parts.minute}:${parts.second}`;
}

function wholeOf(parts) {
  return `${parts.year}-${parts.month}-${parts.day} ${clockOf(parts)} ${parts.timeZoneName}`;
}

export function absolute(date, withDay = true) {
  return (withDay ? wholeOf : clockOf)(partsOf(date));
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// In the other half of the year the offset differs from that in the head of the column.
function short(parts, now) {
  const other = parts.timeZoneName === now.timeZoneName ? "" : ` ${parts.timeZoneName}`;
  const day = `${parts.year}-${parts.month}-${parts.day}`;
  if (day === `${now.year}-${now.month}-${now.day}`) return clockOf(parts) + other;
  if (parts.year !== now.year) return day;
  return `${MONTHS[parts.month - 1]} ${Number(parts.day)} ${parts.hour}:${parts.minute}${other}`;
}

function span(seconds) {
  const two = (size, unit, below, small) =>
    `${Math.floor(seconds / size)}${unit} ${String(Math.floor((seconds % size) / below)).padStart(2, "0")}${small}`;
  if (seconds >= 86400) return two(86400, "d", 3600, "h");
  if (seconds >= 3600) return two(3600, "h", 60, "m");
  return seconds >= 60 ? two(60, "m", 1, "s") : `${Math.floor(seconds)}s`;
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
  const now = partsOf(new Date());
  for (const element of root.querySelectorAll("[data-zone]")) say(element, now.timeZoneName);
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const parts = partsOf(date);
    const whole = wholeOf(parts);
    const words = { absolute: () => whole, clock: () => clockOf(parts), short: () => short(parts, now) };
    say(element, words[element.dataset.style]?.() ?? relative(date));
    if (element.title !== whole) element.title = whole;
  }
}

// Other times do not change.
function goOn() {
  // Stop counting while the server is unreachable.
  if ("disconnected" in document.body.dataset) return;
  for (const element of document.querySelectorAll("time[datetime]:not([data-style])")) {
    say(element, relative(new Date(element.dateTime)));
  }
}

// Handle all new elements of a frame at once: every element of an answer triggers an event.
const fresh = new Set();

function soon({ target }) {
  if (!fresh.size) requestAnimationFrame(() => {
    for (const root of fresh) if (root.isConnected) tell(root);
    fresh.clear();
  });
  fresh.add(target);
}

export function times() {
  // One switch is in the sidebar, one in the sheet on phones.
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
