// The first view: what was run and how far it is, the tables, the learning curves.

function overviewView(run) {
  const data = REPORT.runs[run];
  return h(
    "div",
    { class: "page" },
    part("The header", title, data),
    part("How far the run is", course, data),
    problems(data),
    warnings(data),
    health(data),
    part("The table of runs", allRuns),
    part("The table", results, data),
    part("Several samples or seeds", panelOf, data.tables.samples),
    part("What each stage changed", changesPanel, data, run),
    part("The kinds of question", panelOf, data.tables.kinds),
    part("The curves", curves, data),
    h("p", { class: "colophon" }, REPORT.live ? `Served by seekling ${REPORT.version} to this machine only.` : `Written by seekling ${REPORT.version} on ${REPORT.written.slice(0, 10)}. This page is one file and loads nothing.`),
  );
}

function title({ headline: [[, name], ...facts] }) {
  return h(
    "section",
    { class: "title" },
    h("h1", null, name),
    h("dl", { class: "facts" }, facts.map(([what, value]) => h("div", null, h("dt", null, what), h("dd", null, value)))),
  );
}

function course({ course: found }) {
  if (!found) return null;
  const { done, open, where } = found;
  return h(
    "section",
    { class: "panel" },
    h("h2", null, `This run is not finished: ${stageOf(open[0]).long.toLowerCase()}${where ? `, ${where}` : ""}`),
    h("ol", { class: "course" }, [...done, ...open].map((stage) => h("li", { class: open[0] === stage ? "is-now" : null }, `${done.includes(stage) ? "✓ " : ""}${stageOf(stage).name}`, h("span", { class: "unseen" }, done.includes(stage) ? " done" : open[0] === stage ? " now" : " to come")))),
  );
}

/** Sentences in a box, under a line that says what they are; nothing where there are none. */
function notice(label, heading, words, sentences) {
  if (!sentences.length) return null;
  return h("section", { class: "notice", role: "note", "aria-label": label }, h("p", null, h("b", null, heading), ` ${words}`), h("ul", null, sentences.map((sentence) => h("li", null, sentence))));
}

function problems(data) {
  return notice("What is missing", data.course ? "Not there yet, or damaged." : "This run folder is incomplete.", "What is there is shown.", data.problems);
}

function warnings(data) {
  return notice("What got worse", "A stage made something worse.", "The same questions before and after it; unlikely to be chance (5 % level).", data.warnings);
}

function health(data) {
  return notice("Health of training", "Signs of collapse in RL.", "Compared with its first steps; one alone may be a change of style.", data.health);
}

/** Charts side by side; those over the same steps are read together: the cursor of one moves in all. */
function chartGrid(charts, cursors = {}) {
  return h("div", { class: "chart-grid" }, charts.map((chart) => lineChart(chart, (cursors[chart.x_label] ||= new Set()))));
}

function curves({ charts: { learning, more } }) {
  if (!learning.length && !more.length) return null;
  const cursors = {};
  return h(
    "section",
    { class: "curves" },
    h("h2", null, "Learning curves"),
    chartGrid(learning, cursors),
    more.length > 0 && h("details", { class: "more" }, h("summary", null, count(more.length, "more curve")), chartGrid(more, cursors)),
  );
}
