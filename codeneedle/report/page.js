"use strict";
// Shows the runs of the JSON block. Their text is only ever set as text, never as markup.
const { runs, colours } = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const scheme = window.matchMedia("(prefers-color-scheme: dark)");
const isNarrow = () => window.innerWidth < 600;
// Dark to light, as in pictures and on terminals.
const RAMP = colours.map((each, at) => [at / (colours.length - 1), each]);
const SIDES = ["middle right", "top center", "bottom center"];
let run = runs[0];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Plotly reads a little markup in labels: text from records must not be any.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function options(id, labels) {
  const select = byId(id);
  const before = select.value;
  select.replaceChildren(...labels.map(([value, label]) => {
    const option = element("option", label);
    option.value = value;
    return option;
  }));
  if (labels.some(([value]) => value === before)) select.value = before;
}

function draw(id, traces, layout) {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  Plotly.react(byId(id), traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 20, r: 20, t: 30, b: 40 }, hoverlabel: { align: "left" }, ...layout,
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  }, { displayModeBar: false, responsive: true });
}

function number(value, digits) {
  return value === null ? "–" : value.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
}

function rows(cells, width) {
  const found = [];
  for (let at = 0; at < cells.length; at += width) found.push(cells.slice(at, at + width));
  return found;
}

function showGrid() {
  const metric = run.metrics.find((each) => each.name === byId("metric").value);
  if (!metric) return;
  const cells = rows(metric.cells, run.v.length);
  const words = cells.map((row) => row.map((cell) => (cell.value === null ? plain(cell.word) : "")));
  const text = cells.map((row) => row.map((cell) => {
    const shown = cell.value === null ? "" : number(cell.value, metric.digits);
    return cell.verdict === "beyond" ? `<b>${shown}</b>` : shown;
  }));
  const hover = cells.map((row, k) => row.map((cell, v) => {
    const lines = [`K ${run.k[k]}, V ${run.v[v]}`];
    if (cell.value === null) lines.push(cell.why);
    else lines.push(`${metric.name} ${number(cell.value, metric.digits)}`, `n ${cell.n}`);
    if (cell.loss) lines.push(`loss ${cell.loss}`);
    if (cell.verdict) lines.push(cell.verdict);
    return lines.map(plain).join("<br>");
  }));
  const gaps = cells.map((row) => row.map((cell) => (cell.value === null ? 1 : null)));
  const quiet = colour("--panel");
  byId("metric-note").textContent = `${metric.label}${metric.better === "neither" ? "" : `; ${metric.better} is better`}${metric.note ? ": " + metric.note : ""}. The reference is ${run.reference}.${metric.cells.some((cell) => cell.verdict === "beyond") ? " Bold: beyond the limit by this metric." : ""}`;
  const axes = { x: run.v.map(plain), y: run.k.map(plain), hoverinfo: "text", hovertext: hover, xgap: 2, ygap: 2 };
  draw("grid", [
    { ...axes, type: "heatmap", z: gaps, showscale: false, colorscale: [[0, quiet], [1, quiet]], text: words, texttemplate: "%{text}", textfont: { color: colour("--ink") } },
    {
      ...axes, type: "heatmap", z: cells.map((row) => row.map((cell) => cell.value)), text, texttemplate: "%{text}", hoverongaps: false,
      colorscale: RAMP, reversescale: metric.better === "lower", zmin: metric.ends[0], zmax: metric.ends[1], showscale: !isNarrow(), colorbar: { thickness: 12, outlinewidth: 0 },
      textfont: { size: isNarrow() ? 9 : 13 },
    },
  ], {
    height: 120 + 46 * run.k.length,
    xaxis: { title: { text: "V" }, type: "category", side: "top", showgrid: false, tickangle: 0 },
    yaxis: { title: { text: isNarrow() ? "" : "K" }, type: "category", autorange: "reversed", showgrid: false },
    margin: isNarrow() ? { l: 5, r: 5, t: 50, b: 10 } : { l: 20, r: 20, t: 50, b: 20 },
    ...(isNarrow() ? { font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 11 } } : {}),
  });
  const head = element("tr");
  head.append(element("th", "K \\ V"), ...run.v.map((v) => element("th", v)));
  const body = cells.map((row, k) => {
    const line = element("tr");
    line.append(element("th", run.k[k]), ...row.map((cell) => element("td", cell.value === null ? `${cell.word} (${cell.why})` : number(cell.value, metric.digits))));
    return line;
  });
  byId("grid-table").replaceChildren(head, ...body);
}

function showFront() {
  const { limit, limitText, points } = run.front;
  byId("h-front").parentElement.hidden = !points.length;
  byId("front-note").textContent = `Down and left is better. Of filled points, no other pair as small loses less. Loss: of 100 right tokens, how many fewer come than with ${run.reference}; bars are intervals that hold together for all pairs, the line is the limit of ${limitText}.`;
  // Neighbours on the front get their labels on different sides.
  const front = points.filter((each) => each.onFront).sort((a, b) => a.memory - b.memory);
  const speeds = points.some((each) => each.speed !== null);
  draw("front", [{
    type: "scatter", mode: "markers+text", x: points.map((each) => 100 * each.memory), y: points.map((each) => 100 * each.loss),
    text: points.map((each) => (each.onFront ? plain(each.pair) : "")), textfont: { size: isNarrow() ? 9 : 11 },
    textposition: points.map((each) => SIDES[front.indexOf(each) % SIDES.length] ?? "top center"),
    hoverinfo: "text", hovertext: points.map((each) => [
      each.pair, `memory ${number(100 * each.memory, 0)}%`, `loss ${number(100 * each.loss, 1)} %${each.low === null ? "" : `, ${number(100 * each.low, 1)} .. ${number(100 * each.high, 1)} %`}`,
      each.speed === null ? "" : `speed ${number(100 * each.speed, 0)}%`, each.verdict].filter(Boolean).map(plain).join("<br>")),
    error_y: {
      type: "data", symmetric: false, thickness: 2, width: 6, color: colour("--ink"),
      array: points.map((each) => 100 * ((each.high ?? each.loss) - each.loss)),
      arrayminus: points.map((each) => 100 * (each.loss - (each.low ?? each.loss))),
    },
    marker: {
      size: 11, symbol: points.map((each) => (each.onFront ? "circle" : "circle-open")), line: { width: 1.5 },
      color: speeds ? points.map((each) => 100 * (each.speed ?? 0)) : colour("--accent"), colorscale: RAMP,
      cmin: 0, showscale: speeds, colorbar: { title: { text: "speed, %" }, thickness: 12, outlinewidth: 0 },
    },
  }], {
    height: 420, xaxis: { title: { text: "KV memory, % of the reference's" }, rangemode: "tozero" }, yaxis: { title: { text: "loss, % of right tokens" }, rangemode: "tozero" },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 100 * limit, y1: 100 * limit, line: { dash: "dot", width: 1, color: colour("--ink") } }],
    margin: { l: 60, r: 20, t: 20, b: 50 },
  });
}

function drawMap(id, title, map, z, scale) {
  draw(id, [{
    type: "heatmap", x: map.columns, y: map.rows, z, ...scale, showscale: false, xgap: 2, ygap: 2,
    text: z.map((row) => row.map((value) => number(value, 2))), texttemplate: "%{text}", hoverinfo: "text",
  }], {
    title: { text: plain(title), font: { size: 14 } }, height: 150 + 42 * map.rows.length,
    xaxis: { type: "category", title: { text: "depth" }, showgrid: false }, yaxis: { type: "category", autorange: "reversed", title: { text: "tokens" }, showgrid: false },
    margin: { l: 50, r: 10, t: 40, b: 45 },
  });
}

function showMaps() {
  const map = run.maps.find((each) => each.name === byId("map").value);
  byId("maps-section").hidden = !map;
  if (!map) return;
  const pair = byId("map-pair").value;
  const known = map.pairs[run.reference];
  const chosen = map.pairs[pair];
  const scale = { zmin: 0, zmax: 1, colorscale: RAMP };
  byId("map-reference").hidden = !known;
  byId("map-chosen").hidden = !chosen;
  byId("map-difference").hidden = !known || !chosen;
  if (known) drawMap("map-reference", `${run.reference}, the reference`, map, known, scale);
  if (chosen) drawMap("map-chosen", pair, map, chosen, scale);
  if (known && chosen) {
    const change = chosen.map((row, at) => row.map((value, column) => {
      const other = known[at][column];
      return value === null || other === null ? null : value - other;
    }));
    const white = colour("--panel");
    drawMap("map-difference", "difference", map, change, { zmin: -1, zmax: 1, colorscale: [[0, colour("--bad")], [0.5, white], [1, colour("--good")]] });
  }
}

function showAnswer() {
  const { pairs, order, leftOut } = run.answers;
  byId("answers-section").hidden = !Object.keys(pairs).length;
  const of = pairs[byId("answer-pair").value];
  if (!of) return;
  const chosen = byId("answer-function").value;
  options("answer-function", order.filter((name) => of[name]).map((name) => [name, `${name}: ${of[name].error || of[name].outcome}`]));
  const answer = of[byId("answer-function").value] ?? of[chosen];
  if (!answer) return;
  const whole = answer.isRight && !answer.rows.length;
  byId("answer-note").textContent = [
    answer.error && `no answer: ${answer.error}`, whole && "all of it is right",
    leftOut && `${leftOut} further answers did not fit on this page: codeneedle show has them`,
  ].filter(Boolean).join("; ");
  const head = element("tr");
  head.append(element("th", "expected"), element("th", "answered"));
  byId("answer").replaceChildren(...(answer.rows.length ? [head] : []), ...answer.rows.map(([expected, produced]) => {
    const row = element("tr", undefined, expected === null ? "extra" : produced === null || expected !== produced ? "differs" : "");
    row.append(element("td", expected ?? ""), element("td", produced ?? ""));
    return row;
  }));
}

function showMemory() {
  const { contexts, pairs } = run.memory;
  byId("memory-section").hidden = !contexts.length;
  if (!contexts.length) return;
  const onFront = new Set(run.front.points.filter((each) => each.onFront).map((each) => each.pair));
  const isShown = (pair) => pair === run.reference || onFront.has(pair) || pair.split("/")[0] === pair.split("/")[1];
  const shown = Object.entries(pairs).filter(([pair]) => isShown(pair));
  draw("memory", shown.map(([pair, sizes]) => ({
    type: "scatter", mode: "lines+markers", name: plain(pair), x: contexts, y: sizes,
  })), {
    height: 420, xaxis: { type: "log", title: { text: "context, tokens" }, tickvals: contexts, ticktext: contexts.map((each) => each.toLocaleString("en")) },
    yaxis: { type: "log", dtick: "D2", tickformat: "~g", title: { text: "MiB" } }, margin: { l: 60, r: 20, t: 20, b: 60 },
    legend: isNarrow() ? { orientation: "h", y: -0.3, font: { size: 10 } } : { font: { size: 11 } },
  });
}

function showRun() {
  byId("name").textContent = run.name;
  byId("headline").replaceChildren(...run.headline.map((line) => element("span", line)));
  for (const each of document.querySelectorAll("[data-run]")) each.hidden = runs[Number(each.dataset.run)] !== run;
  options("metric", run.metrics.map((each) => [each.name, each.name]));
  options("map", run.maps.map((each) => [each.name, each.name]));
  options("map-pair", [...new Set(run.maps.flatMap((each) => Object.keys(each.pairs)))].reverse().map((pair) => [pair, pair]));
  options("answer-pair", Object.keys(run.answers.pairs).map((pair) => [pair, pair]));
  for (const show of [showGrid, showFront, showMaps, showAnswer, showMemory]) show();
}

options("run", runs.map((each, at) => [String(at), each.name]));
byId("runs").hidden = runs.length < 2;
byId("run").addEventListener("change", () => { run = runs[Number(byId("run").value)]; showRun(); });
for (const [id, show] of [["metric", showGrid], ["map", showMaps], ["map-pair", showMaps], ["answer-pair", showAnswer], ["answer-function", showAnswer]]) {
  byId(id).addEventListener("change", show);
}
scheme.addEventListener("change", showRun);
showRun();
