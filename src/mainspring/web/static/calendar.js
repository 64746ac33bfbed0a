// The calendar: the viewer's zone, arrow keys, and clicks on minutes of an hour.
import { named } from "./times.js";

const MINUTES = 5;

// The server lays out days and hours by a cookie. Reload a page that was rendered before the cookie was set.
function align() {
  const shown = document.querySelector("[data-calendar-zone]");
  if (!shown || "chosen" in shown.dataset) return;
  if (shown.dataset.calendarZone !== named()) htmx.trigger(document.getElementById("live"), "live");
}

function move(event) {
  const cell = event.target.closest(".heat.by-hour td > a");
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!cell || !step) return;
  const row = cell.closest("tr");
  const rows = [...row.parentElement.rows];
  const wanted = rows[rows.indexOf(row) + step[0]]?.cells[cell.parentElement.cellIndex + step[1]]?.querySelector("a");
  event.preventDefault();
  wanted?.focus();
}

// An hour is one link; the position of the click selects the minutes.
function narrow(event) {
  const hour = event.target.closest("[data-slot]");
  if (!hour || !event.detail) return;
  const box = hour.getBoundingClientRect();
  const minute = Math.floor((event.clientX - box.left) / box.width * 60 / MINUTES) * MINUTES;
  const begin = new Date(hour.dataset.slot);
  begin.setUTCMinutes(begin.getUTCMinutes() - begin.getUTCMinutes() % 60 + minute, 0, 0);
  const address = new URL(hour.href);
  address.searchParams.set("at", begin.toISOString());
  address.searchParams.set("minutes", String(MINUTES));
  event.preventDefault();
  event.stopPropagation();
  // Request with the link's own attributes; the surrounding element defines the target.
  htmx.ajax("GET", address.pathname + address.search, { source: hour });
}

export function calendar() {
  if (!document.querySelector("[data-calendar-zone]")) return;
  align();
  document.addEventListener("zone", align);
  document.addEventListener("keydown", move);
  document.addEventListener("click", narrow, true);
}
