"use strict";
// Draws the report from the numbers in the page. The columns of a row, as report.py's _row returns them:
const FIELDS = ["key", "receipts", "first", "p", "late", "duplicates", "recoveries", "now", "wanted", "explore", "change",
  "keeps", "gain", "confidence", "reason"];
const LEVELS = Array.from({length: 92}, (_, n) => String.fromCharCode(35 + n)).filter(c => c !== "\\").join("");
const TIMES = [[0.001, "1 ms"], [0.01, "10 ms"], [0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"],
  [3600, "1 h"], [36000, "10 h"], [864000, "10 d"]];
const W = 470, H = 262, LEFT = 52, RIGHT = 12, TOP = 34, BOTTOM = 42;

const figures = value => String(Number(value.toPrecision(3)));
const seconds = s => s === null ? "–" : s >= 3600 ? `${figures(s / 3600)} h` : s >= 600 ? `${figures(s / 60)} min` : `${figures(s)} s`;
const share = value => value === 0 ? "0 %" : value >= 0.1 ? `${Math.round(100 * value)} %` : `${Number((100 * value).toPrecision(2))} %`;
const whole = new Intl.NumberFormat("en"), count = value => whole.format(value);
const escaped = text => String(text).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
const named = row => Object.fromEntries(FIELDS.map((name, n) => [name, row[n]]));
const levels = text => Array.from(text, c => LEVELS.indexOf(c) / (LEVELS.length - 1));
const spaced = (n, from, to) => Array.from({length: n}, (_, k) => from * (to / from) ** (n > 1 ? k / (n - 1) : 0));

const wanted = r => r.wanted !== null ? `<span class="${r.change ? "up" : ""}">${seconds(r.wanted)}</span>`
  : r.keeps ? `keep ${seconds(r.now)}` : r.explore ? `try ${seconds(r.explore)}` : "–";
const quantile = r => r.p !== null ? seconds(r.p) : r.late !== null ? `<span class="soft">≈ ${seconds(r.late)}</span>`
  : '<span class="soft">not identifiable</span>';
const tag = r => `<span class="tag ${r.confidence}">${r.confidence}</span>`;

// Charts. An axis maps a value to 0 … 1; points are [x, y] in these coordinates.
const log = (low, high) => value => Math.log(value / low) / Math.log(high / low);
const at = ([x, y], w = W, h = H) => `${(LEFT + x * (w - LEFT - RIGHT)).toFixed(1)} ${(h - BOTTOM - y * (h - TOP - BOTTOM)).toFixed(1)}`;
const path = points => points.length ? `M${points.map(p => at(p)).join("L")}` : "";
const line = (points, color, width = 1.4, more = "") => `<path d="${path(points)}" fill="none" stroke="var(--${color})" stroke-width="${width}" ${more}/>`;
const inside = ticks => ticks.filter(([place]) => place >= -0.001 && place <= 1.001);
const durations = axis => inside(TIMES.map(([s, name]) => [axis(s), name]));
const decades = (axis, low, high, format) => {
  const from = Math.ceil(Math.log10(low)), to = Math.floor(Math.log10(high)), step = Math.max(1, Math.ceil((to - from) / 6));
  return inside(Array.from({length: Math.max(0, Math.floor((to - from) / step) + 1)}, (_, n) => [axis(10 ** (from + n * step)), format(10 ** (from + n * step))]));
};

function chart(label, xTicks, yTicks, drawn, legend = [], marks = []) {
  const across = yTicks.map(([y, name]) => `<path d="${path([[0, y], [1, y]])}" stroke="var(--grid)"/><text x="${LEFT - 6}" y="${at([0, y]).split(" ")[1]}" dy="4" text-anchor="end">${name}</text>`);
  const up = xTicks.map(([x, name]) => `<path d="${path([[x, 0], [x, 1]])}" stroke="var(--grid)"/><text x="${at([x, 0]).split(" ")[0]}" y="${H - 24}" text-anchor="middle">${name}</text>`);
  const names = legend.map(([name, color], n) => `<tspan fill="var(--${color})" dx="${n ? 10 : 0}">— ${name}</tspan>`).join("");
  const lines = marks.filter(([x]) => x >= 0 && x <= 1).map(([x, name, color], n) => `${line([[x, 0], [x, 1]], color, 1.4, 'stroke-dasharray="4 2"')}<text fill="var(--${color})" x="${at([x, 0]).split(" ")[0]}" y="${12 + 14 * n}" text-anchor="${x > 0.5 ? "end" : "start"}">${name}</text>`);
  return `<svg role="img" aria-label="${label}" viewBox="0 0 ${W} ${H}">${across.join("")}${up.join("")}${drawn}${lines.join("")}<text x="${LEFT}" y="${marks.length ? H - 6 : 14}">${names}</text></svg>`;
}

function marked(r, axis) {
  const apart = r.wanted !== null && r.wanted !== r.now;
  const found = [[axis(r.now), `now ${seconds(r.now)}`, apart ? "red" : "ink"]];
  return apart ? [...found, [axis(r.wanted), `recommended ${seconds(r.wanted)}`, "teal"]] : found;
}

const curve = (work, text, axis) => {
  const found = levels(text), times = spaced(found.length, work.x[0], work.x[0] * (work.x[1] / work.x[0]) ** ((found.length - 1) / Math.max(work.points - 1, 1)));
  return found.map((y, n) => [axis(times[n]), y]);
};

function workChart(queue, r) {
  const {x, lines, keys} = queue.work, axis = log(x[0], x[2]);
  const along = (text, points) => curve({x, points}, text, axis);
  const [middle, lower, upper] = lines.map(text => along(text, 41));
  const band = `<path d="${path([...upper, ...lower.reverse()])}" fill="var(--blue)" opacity=".18"/>`;
  const thin = keys.map(text => line(along(text, 21), "blue", 0.8, 'opacity=".35"')).join("");
  const y = log(1e-4, 1);
  return chart("share of unfinished work over time", durations(axis), decades(y, 1e-4, 1, share), band + thin + line(middle, "blue", 2), [], marked(r, axis));
}

function costChart(queue, r) {
  const {x, y, lines} = queue.cost, axis = log(...x), height = log(...y);
  const names = [["wasted work", "amber"], ["false dead letters", "red"], ["waiting", "teal"], ["total", "blue"]];
  const drawn = lines.map((text, n) => {
    const found = levels(text), times = spaced(found.length, ...x);
    return line(found.map((place, k) => [axis(times[k]), place]), names[n][1], n === 3 ? 2.2 : 1.2);
  });
  return chart("cost of each timeout", durations(axis), decades(height, ...y, seconds), drawn.join(""), names, marked(r, axis));
}

function daysChart(queue) {
  const {days, y, lines} = queue.days, n = Math.max(days.length, 4), width = 0.38 / n;
  const bars = lines.map((text, side) => levels(text).map((high, k) => {
    const x = (k + 0.12 + 0.38 * side) / n;
    return `<path d="${path([[x, 0], [x, high], [x + width, high], [x + width, 0]])}Z" fill="var(--${side ? "teal" : "amber"})"/>`;
  }).join(""));
  const step = Math.ceil(days.length / 8);
  const ticks = days.map((day, k) => [(k + 0.5) / n, day]).filter((_, k) => k % step === 0);
  return chart("duplicates and recoveries by day", ticks, [0, 0.25, 0.5, 0.75, 1].map(part => [part, share(part * y)]), bars.join(""), [["duplicates", "amber"], ["recoveries", "teal"]]);
}

function waitsChart(queue) {
  const {first, step, places, y, lines} = queue.waits, last = Math.max(places[places.length - 1], 1), axis = log(...y);
  const drawn = lines.map((text, n) => line(levels(text).map((high, k) => [places[k] / last, high]), n ? "teal" : "blue", 1.6, 'stroke-linecap="round"'));
  const hour = part => new Date(3600e3 * (first + step * Math.round(part * last))).toISOString().slice(5, 16).replace("T", " ");
  const between = TIMES.filter(([s]) => s > y[0] && s < y[1]).length > 1 ? durations(axis) : inside([0.1, 0.5, 0.9].map(part => [part, seconds(y[0] * (y[1] / y[0]) ** part)]));
  return chart("age of the oldest message by hour", [0.12, 0.5, 0.88].map(part => [part, hour(part)]), between, drawn.join(""), [["oldest message", "blue"], ["median", "teal"]]);
}

// The small chart of the list: the work of a queue with its timeouts.
function small(queue, r) {
  const {x, lines} = queue.work, axis = log(x[0], x[2]), w = 120, h = 30;
  const to = ([a, b]) => `${(a * w).toFixed(1)} ${(h - b * h).toFixed(1)}`;
  const upright = marked(r, axis).map(([place, , color]) => `<path d="M${to([place, 0])}L${to([place, 1])}" stroke="var(--${color})" stroke-width="1.4"/>`);
  return `<svg role="img" aria-label="its work" viewBox="0 0 ${w} ${h}" class="small"><path d="M${curve({x, points: 41}, lines[0], axis).map(to).join("L")}" fill="none" stroke="var(--blue)" stroke-width="1.5"/>${upright.join("")}</svg>`;
}

// The list and the details of a queue.
const cells = r => `<td>${count(r.first)}</td><td>${quantile(r)}</td><td>${share(r.duplicates)}</td><td>${share(r.recoveries)}</td><td>${seconds(r.now)}</td><td>${wanted(r)}</td><td>${r.gain > 0 ? share(r.gain) : "–"}</td><td>${tag(r)}</td>`;
const heads = () => ["first receipts", `p${data.percentile}`, "duplicates", "recoveries", "timeout", "recommended", "saves", "confidence"];
const fact = (value, name) => `<div class="card"><b>${value}</b><span>${name}</span></div>`;
const figure = (title, drawn, text) => `<figure class="card"><h3>${title}</h3>${drawn}<figcaption>${text}</figcaption></figure>`;

function details(queue) {
  const r = named(queue.row), keys = queue.keys.map(named), reasons = keys.some(key => key.reason);
  const rows = keys.map(key => `<tr><td>${escaped(key.key || "(none)")}</td>${cells(key)}${reasons ? `<td class="why">${escaped(key.reason)}</td>` : ""}</tr>`);
  const head = ["routing key", ...heads(), ...(reasons ? ["reason"] : [])].map(name => `<th class="${name === "reason" ? "why" : ""}">${name}</th>`).join("");
  const missing = [queue.left_out ? `These are the ${keys.length} most frequent keys; ${queue.left_out} more` : "", keys.length && !reasons ? "The reasons for the keys" : ""].filter(Boolean);
  return `<h2>${escaped(queue.name)}</h2><div class="facts">
${fact(count(r.receipts), `receipts, ${count(r.first)} of them first receipts`)}${fact(quantile(r), `p${data.percentile} of the work`)}
${fact(share(r.duplicates), "duplicates: expired, and deleted late")}${fact(share(r.recoveries), "recoveries: expired, and never finished")}
${fact(seconds(r.now), "current timeout")}${fact(wanted(r), r.gain > 0 ? `recommended timeout, saves ${share(r.gain)} of the cost` : "recommended timeout")}</div>
<p class="card reason ${r.wanted === null ? "none" : ""}"><span class="tag ${r.confidence}">confidence: ${r.confidence}</span> ${escaped(r.reason)}.</p>
<div class="charts">${figure("Unfinished work", workChart(queue, r), "Share of first receipts whose work is unfinished after a time, with 95 % bounds; thin lines: the most frequent routing keys. Messages whose work exceeds the timeout are delivered again while it continues.")}
${figure("Cost of a timeout", costChart(queue, r), `Per message, in seconds of work: wasted work, ${data.dead_letter} for a false dead letter, ${data.wait} for a second of waiting after a crash.`)}
${figure("Duplicates and recoveries by day", daysChart(queue), "Shares of all receipts. Duplicates expired and were deleted late: the timeout is too short. Recoveries expired and were never finished: the consumer crashed or gave up.")}
${queue.waits ? figure("Age of the oldest message", waitsChart(queue), "From sending to the first receive, by the hour of that receive.") : ""}</div>
${rows.length ? `<div class="card scroll"><table><thead><tr>${head}</tr></thead><tbody>${rows.join("")}</tbody></table></div>` : ""}
${missing.map(text => `<p class="soft">${text} are in the table of recommendations.</p>`).join("")}`;
}

const COLUMNS = [["queue", q => q.name], ["work", null], ["potential saving", q => -q.lost], ["first receipts", q => -q.row[2]], ["p", q => -(q.row[3] ?? q.row[4] ?? 0)],
  ["duplicates", q => -q.row[5]], ["recoveries", q => -q.row[6]], ["timeout", q => -q.row[7]], ["recommended", q => -(q.row[8] ?? 0)], ["saves", q => -q.row[12]],
  ["confidence", q => ["high", "medium", "low", "none"].indexOf(q.row[13])]];
let data, sortedBy = 2;
const page = id => document.getElementById(id);

function list() {
  const words = page("search").value.toLowerCase().split(/\s+/).filter(Boolean), by = COLUMNS[sortedBy][1];
  const found = data.queues.filter(q => words.every(word => q.name.toLowerCase().includes(word) || q.keys.some(key => (key[0] || "").toLowerCase().includes(word))));
  if (sortedBy !== 2) found.sort((a, b) => by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0); // sorted already, the worst first
  page("found").textContent = `${found.length} of ${data.queues.length} queues`;
  page("heads").innerHTML = COLUMNS.map(([name, key], n) => `<th scope="col"${n === sortedBy ? ' aria-sort="ascending"' : ""}>${key ? `<button data-sort="${n}">${name === "p" ? `p${data.percentile}` : name}</button>` : name}</th>`).join("");
  page("rows").innerHTML = found.map(q => {
    const r = named(q.row);
    return `<tr><td><button data-open="${data.queues.indexOf(q)}" aria-expanded="false">${escaped(q.name)}</button></td><td>${small(q, r)}</td><td>${q.lost > 0 ? seconds(q.lost) : "–"}</td>${cells(r)}</tr>`;
  }).join("");
}

function toggle(button) {
  const row = button.closest("tr"), open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) row.nextElementSibling.remove();
  else row.insertAdjacentHTML("afterend", `<tr class="opened"><td colspan="${COLUMNS.length}"><section>${details(data.queues[button.dataset.open])}</section></td></tr>`);
}

async function start() {
  const bytes = Uint8Array.from(atob(page("data").textContent), c => c.charCodeAt(0));
  data = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const {queues} = data, changes = queues.filter(q => q.row[10]).length, lost = queues.reduce((sum, q) => sum + q.lost, 0);
  page("about").textContent = `${data.at} · work durations of ${queues.length} queue${queues.length === 1 ? "" : "s"}, with the effects of current and other timeouts. The weight of a receipt halves every ${data.half_life} days.`;
  if (!queues.length) page("content").innerHTML = '<p class="card">No receipt has ended yet.</p>';
  else if (queues.length === 1) page("content").innerHTML = `<section>${details(queues[0])}</section>`;
  else {
    page("sum").innerHTML = fact(queues.length, "queues") + fact(changes, "recommended changes") + fact(queues.filter(q => q.row[13] === "none").length, "queues without recommendation") + fact(seconds(lost), "potential saving in work and waiting, over all counted receipts");
    list();
    page("search").addEventListener("input", list);
    page("content").addEventListener("click", event => {
      const button = event.target.closest("button");
      if (button?.dataset.sort) { sortedBy = Number(button.dataset.sort); list(); }
      else if (button?.dataset.open) toggle(button);
    });
  }
  document.documentElement.dataset.ready = "yes";
}
start();
