// Tables of figures as Python made them: a cell is a text, nothing, or a figure with its interval.

/** One table. plotted: numbers of the columns whose intervals are drawn; isStack: its rows become cards on a phone. */
function tableOf({ label, title, header, rows, stages }, plotted = [], isStack = false) {
  const table = h(
    "table",
    { class: `figures table-${label}${isStack ? " stack" : ""}` },
    h("thead", null, h("tr", null, header.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows.map((cells, row) => h("tr", null, cells.map((cell, column) => cellOf(cell, column, header, plotted.includes(column), stages[row]))))),
  );
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title }, table);
}

function cellOf(cell, column, header, isPlotted, stage) {
  const tone = stage ? stageOf(stage).tone : "base";
  if (column === 0) return h("th", { scope: "row" }, stage && h("i", { class: `key tone-${tone}` }), cell);
  const isWide = isPlotted && isObject(cell);
  return h("td", { "data-label": header[column], class: isWide ? "wide" : null }, figure(cell, isWide ? tone : null));
}

/** A figure: its value, k of n and interval, the interval drawn where there is a tone. */
function figure(cell, tone = null) {
  if (!isObject(cell)) return cell ?? "–";
  if (!isNumber(cell.value)) return cell.text;
  const { value, low, high, k, n } = cell;
  const range = `${(100 * low).toFixed(1)} – ${(100 * high).toFixed(1)}`;
  const of = isNumber(k) ? ` ${k}/${n}` : "";
  if (isNumber(cell.p_value)) return cell.text;
  if (tone === null) return [h("b", null, percent(value)), h("small", null, of), h("small", { class: "range" }, range)];
  const plot = intervalPlot({ value, low, high, from: 0, to: 1, tone, label: `${percent(low)} to ${percent(high)}` });
  return [h("b", { class: "figure" }, percent(value)), h("small", null, of), h("span", { class: "interval-cell" }, plot, h("small", null, range))];
}

function notesOf(table) {
  return table.notes.length > 0 && h("p", { class: "note" }, table.notes.join(" "));
}

/** A table in a panel of its own, with what belongs below it. */
function panelOf(table, plotted, isStack, ...more) {
  return table && h("section", { class: "panel" }, h("h2", null, table.title), table.rows.length > 0 && tableOf(table, plotted, isStack), notesOf(table), more);
}

/** A table inside the panel of another. */
function insetOf(table) {
  return table && h("section", { class: "inset" }, h("h3", null, table.title), tableOf(table));
}

function results({ tables }) {
  const { results: main, costs, sources, figures } = tables;
  if (!main) return null;
  const all = figures && h("details", { class: "more" }, h("summary", null, figures.title), tableOf(figures));
  return panelOf(main, [1], true, insetOf(costs), insetOf(sources), all);
}

/** What several runs say beside each other. */
function allRuns() {
  const { results: main, samples, gains } = REPORT.tables;
  const link = (name) => {
    const run = REPORT.runs.findIndex((one) => one.name === name);
    return run < 0 ? name : h("a", { href: `#/${run}/overview` }, name);
  };
  const linked = main && { ...main, title: count(REPORT.runs.length, "run"), rows: main.rows.map(([name, ...rest]) => [link(name), ...rest]) };
  return [panelOf(linked, [2], true), panelOf(samples), panelOf(gains)];
}

function changesPanel({ changes }, run) {
  if (!changes.length) return null;
  const reach = Math.max(0.1, ...changes.flatMap(({ em_difference: gap }) => [Math.abs(gap.low), Math.abs(gap.high)]));
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "What each stage changed"),
    h("div", { class: "gains" }, changes.map((one) => gain(one, Math.min(1, reach * 1.05), run))),
    h("p", { class: "note" }, "Exact match, second minus first, question by question: a paired t test over the questions that both scored; interval and p are of the same test."),
  );
}

function gain(one, reach, run) {
  const [first, second] = [stageOf(one.first), stageOf(one.second)];
  const { value, low, high } = one.em_difference;
  const label = `${points(value)} points, 95 % interval ${points(low)} to ${points(high)}`;
  return h(
    "div",
    { class: "gain" },
    h("p", { class: "gain-name" }, `${first.name} → ${second.name}`),
    h("p", { class: "gain-value" }, h("b", { class: "figure" }, points(value)), h("span", null, ` points  [${points(low)}, ${points(high)}]`)),
    intervalPlot({ value, low, high, from: -reach, to: reach, tone: second.tone, label }),
    h(
      "p",
      { class: "gain-detail" },
      [flips(one, "won", one.num_wins, run), flips(one, "lost", one.num_losses, run), `${one.num_both} both right`, `${one.num_neither} neither`, `n = ${one.num_questions}`, `p ${pValue(one.em_difference.p_value)}`].map((text) => [h("span", null, text), " "]),
    ),
  );
}

/** How many answers changed, as a link to these episodes where the explorer can filter for them. */
function flips(one, what, number, run) {
  const text = `${number} ${what}`;
  const isLinked = number > 0 && BEFORE[one.second] === one.first && (indexOf(run)?.stages || []).includes(one.second);
  return isLinked ? h("a", { href: `#/${run}/episodes/${one.second}:${what}` }, text) : text;
}

function pValue(value) {
  return value < 0.001 ? "< 0.001" : `= ${value.toPrecision(2)}`;
}
