"use strict";
// Shows the runs of the JSON block. Their text is only ever set as text, never as markup.
const { runs, colours } = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
// Orange below 0, purple above, as in pictures; safe for the colour-blind.
const CHANGES = [[179, 88, 6], [253, 184, 99], [247, 247, 247], [178, 171, 210], [84, 39, 136]];
let run = runs[0];

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

function number(value, digits) {
  return value.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
}

// A table of coloured cells: text, word, what a pointer shows, ground, ink, marks.
function heat(table, across, down, rows) {
  const head = element("tr");
  head.append(element("th", "K \\ V"), ...across.map((name) => element("th", name)));
  const body = down.map((name, at) => {
    const line = element("tr");
    line.append(element("th", name), ...rows[at].map(([text, word, tip, ground, ink, marks]) => {
      const cell = element("td", text, [...(marks || "")].join(" "));
      if (word) cell.append(element("small", word));
      if (tip) cell.title = tip;
      if (ground) {
        cell.style.background = ground;
        cell.style.color = ink;
      }
      return cell;
    }));
    return line;
  });
  table.replaceChildren(head, ...body);
  return head.firstChild;
}

function showGrid() {
  const metric = run.metrics.find((each) => each.name === byId("metric").value);
  if (!metric) return;
  byId("metric-note").textContent = `${metric.label}.`;
  byId("metric-legend").replaceChildren(...metric.legend.flatMap(([mark, meaning]) => [element("dt", mark), element("dd", meaning)]));
  const width = metric.v.length;
  heat(byId("grid"), metric.v, metric.k, metric.k.map((_, at) => metric.cells.slice(at * width, (at + 1) * width)));
}

// The colour at a place, 0 to 1, of evenly spaced steps, and an ink that can be read on it.
function mixed(steps, place) {
  const at = Math.min(Math.max(place, 0), 1) * (steps.length - 1);
  const below = Math.min(Math.floor(at), steps.length - 2);
  const rgb = steps[below].map((low, part) => Math.round(low + (at - below) * (steps[below + 1][part] - low)));
  const light = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
  return [`rgb(${rgb})`, light > 130 ? "#000000" : "#ffffff"];
}

function drawMap(id, title, map, values, steps, place) {
  const table = element("table", undefined, "heat");
  const shown = values.map((row) => row.map((value) => (value === null ? ["–"] : [number(value, 2), "", "", ...mixed(steps, place(value))])));
  heat(table, map.columns, map.rows, shown).textContent = "tokens";
  const gaps = values.flat().includes(null) ? "; –: not asked, or without an answer" : "";
  byId(id).replaceChildren(element("h3", title), table, element("p", `depth${gaps}`, "note"));
}

function showMaps() {
  const map = run.maps.find((each) => each.name === byId("map").value);
  byId("maps-section").hidden = !map;
  if (!map) return;
  const pair = byId("map-pair").value;
  const known = map.pairs[run.reference];
  const chosen = map.pairs[pair];
  byId("map-reference").hidden = !known;
  byId("map-chosen").hidden = !chosen;
  byId("map-difference").hidden = !known || !chosen;
  if (known) drawMap("map-reference", `${run.reference}, the reference`, map, known, colours, (value) => value);
  if (chosen) drawMap("map-chosen", pair, map, chosen, colours, (value) => value);
  if (known && chosen) {
    const change = chosen.map((row, at) => row.map((value, column) => {
      const other = known[at][column];
      return value === null || other === null ? null : value - other;
    }));
    drawMap("map-difference", "difference", map, change, CHANGES, (value) => (value + 1) / 2);
  }
}

function showAnswer() {
  const { pairs, order, right, leftOut } = run.answers;
  byId("answers-section").hidden = !Object.keys(pairs).length;
  const pair = byId("answer-pair").value;
  const of = pairs[pair];
  if (!of) return;
  options("answer-function", order.filter((name) => of[name]).map((name) => [name, `${name}: ${of[name].error || of[name].outcome}`]));
  const answer = of[byId("answer-function").value];
  byId("answer-note").textContent = [
    answer.error && `no answer: ${answer.error}`, right[pair] && `${right[pair]} answers of ${pair} are right and not listed`,
    leftOut && `${leftOut} further answers of this run did not fit on this page: codeneedle show has them`,
  ].filter(Boolean).join("; ");
  const head = element("tr");
  head.append(element("th", "expected"), element("th", "answered"));
  byId("answer").replaceChildren(...(answer.rows.length ? [head] : []), ...answer.rows.map(([expected, produced]) => {
    const row = element("tr", undefined, expected === null ? "extra" : produced === null || expected !== produced ? "differs" : "");
    row.append(element("td", expected ?? ""), element("td", produced ?? ""));
    return row;
  }));
}

function showRun() {
  byId("name").textContent = run.name;
  byId("headline").replaceChildren(...run.headline.map((line) => element("span", line)));
  for (const each of document.querySelectorAll("[data-run]")) each.hidden = runs[Number(each.dataset.run)] !== run;
  // A section without anything about this run.
  for (const each of document.querySelectorAll(".by-run")) each.hidden = !each.querySelector("[data-run]:not([hidden]) *");
  options("metric", run.metrics.map((each) => [each.name, each.name]));
  options("map", run.maps.map((each) => [each.name, each.name]));
  options("map-pair", [...new Set(run.maps.flatMap((each) => Object.keys(each.pairs)))].reverse().map((pair) => [pair, pair]));
  options("answer-pair", Object.keys(run.answers.pairs).map((pair) => [pair, pair]));
  for (const show of [showGrid, showMaps, showAnswer]) show();
}

options("run", runs.map((each, at) => [String(at), each.name]));
byId("runs").hidden = runs.length < 2;
byId("run").addEventListener("change", () => { run = runs[Number(byId("run").value)]; showRun(); });
for (const [id, show] of [["metric", showGrid], ["map", showMaps], ["map-pair", showMaps], ["answer-pair", showAnswer], ["answer-function", showAnswer]]) {
  byId(id).addEventListener("change", show);
}
showRun();
