// Charts. The data is in data-chart as JSON: {kind, x: [seconds], unit, series: [{name, colour, values, joined}]}.
import { absolute } from "./times.js";

const drawn = new WeakMap();
// Steps between grid lines, in round units of time.
const MILLISECONDS = [0.01, 0.1, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5,
  72e5, 144e5, 432e5, 864e5];
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(10).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
const FEW = 30;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function words(value, unit) {
  if (value == null) return "–";
  if (value === 0) return "0";
  if (unit !== "ms") return value.toLocaleString("en");
  if (value < 1) return `${Math.round(value * 1000)}µs`;
  if (value < 1000) return `${Math.round(value)}ms`;
  return value < 60000 ? `${+(value / 1000).toFixed(1)}s` : `${+(value / 60000).toFixed(1)}m`;
}

// Label days with their UTC date, and shorter steps with the time in the viewer's zone.
function moment(tick, x) {
  if (x.length > 1 && x[1] - x[0] >= 86400) return new Date(tick * 1000).toISOString().slice(5, 10);
  return absolute(new Date(tick * 1000), false).slice(0, 5);
}

function stacked(series) {
  const sums = [];
  return series.map((one) => one.values.map((value, at) => (sums[at] = (sums[at] || 0) + (value || 0))));
}

// Draw dots for points that a line cannot show: single points, and all points of a short joined series.
function dots(one) {
  const there = one.values.flatMap((value, at) => (value == null ? [] : [at]));
  if (one.joined) return there.length <= FEW ? there : [];
  return there.filter((at) => one.values[at - 1] == null && one.values[at + 1] == null);
}

function tip(element, said) {
  const box = document.createElement("div");
  box.className = "chart-tip";
  box.hidden = true;
  return {
    hooks: {
      init: [(plot) => plot.over.append(box)],
      setCursor: [(plot) => {
        const at = plot.cursor.idx;
        box.hidden = at == null || plot.cursor.left < 0;
        if (box.hidden) return;
        const lines = said.series.map((one) => `${one.name} ${words(one.values[at], said.unit)}`);
        box.replaceChildren(...[absolute(new Date(said.x[at] * 1000)), ...lines].map((line) => {
          const row = document.createElement("div");
          row.textContent = line;
          return row;
        }));
        const left = plot.cursor.left + 16 + box.offsetWidth > plot.over.clientWidth
          ? plot.cursor.left - box.offsetWidth - 12 : plot.cursor.left + 12;
        box.style.left = `${left}px`;
        box.style.top = "4px";
      }],
    },
  };
}

function draw(element) {
  const text = element.dataset.chart;
  const known = drawn.get(element);
  if (known?.text === text && known.look === look() && known.plot.root.isConnected) return;
  known?.plot.destroy();
  element.replaceChildren();
  const said = JSON.parse(text);
  const bars = said.kind === "bars";
  const values = bars ? stacked(said.series) : said.series.map((one) => one.values);
  const axis = { stroke: colour("--muted"), font: "11px system-ui", ticks: { show: false }, gap: 6 };
  const lines = said.series.map((one) => ({
    stroke: colour(one.colour), width: bars ? 0 : 1.6, spanGaps: Boolean(one.joined),
    points: { show: !bars, size: one.joined ? 5 : 4, width: 0, fill: colour(one.colour), filter: () => dots(one) },
    fill: bars ? colour(one.colour) : undefined,
    paths: bars ? uPlot.paths.bars({ size: [0.72, 24], radius: 0.15 }) : uPlot.paths.linear(),
  }));
  // Draw the largest first, so that smaller ones stay visible.
  if (bars) { lines.reverse(); values.reverse(); }
  const plot = new uPlot({
    width: element.clientWidth, height: element.clientHeight, legend: { show: false }, padding: [8, 20, 0, 0],
    cursor: { y: false, points: { show: !bars }, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, ({ ms: 10, runs: 4 })[said.unit] ?? 1)] } },
    axes: [
      { ...axis, grid: { show: false }, space: 64, size: 28, values: (_, ticks) => ticks.map((tick) => moment(tick, said.x)) },
      { ...axis, grid: { stroke: colour("--line"), width: 1 }, size: 48, space: 36, incrs: said.unit === "ms" ? MILLISECONDS : WHOLE, values: (_, ticks) => ticks.map((tick) => words(tick, said.unit)) },
    ],
    series: [{}, ...lines],
    plugins: [tip(element, said)],
  }, [said.x, ...values], element);
  drawn.set(element, { plot, text, look: look(), size: element.clientWidth });
}

const look = () => [colour("--muted"), colour("--line"), localStorageZone()].join();
const localStorageZone = () => { try { return localStorage.getItem("mainspring.zone") || ""; } catch { return ""; } };
const all = () => document.querySelectorAll("[data-chart]").forEach(draw);

export function charts() {
  if (!window.uPlot) return;
  all();
  // Draw right after a swap, which may have removed the canvas.
  document.addEventListener("htmx:afterSwap", all);
  document.addEventListener("theme", all);
  document.addEventListener("zone", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  let timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => document.querySelectorAll("[data-chart]").forEach((element) => {
      drawn.get(element)?.plot.setSize({ width: element.clientWidth, height: element.clientHeight });
    }), 100);
  });
}
