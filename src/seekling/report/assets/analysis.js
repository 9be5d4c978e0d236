// The second view: why answers are wrong, what episodes do and since when, what searching finds, where the time goes.

const CAUSE_TONES = { right: "rl", not_retrieved: "expert", not_read: "sft", misread: "train", no_answer: "base", infrastructure: "bad", failed: "bad", unscored: "other" };

function analysisView(run) {
  const data = REPORT.runs[run];
  const stages = Object.entries(data.panels);
  return h(
    "div",
    { class: "page" },
    h("h1", { class: "unseen" }, "Analysis"),
    problems(data),
    stages.length === 0 && h("p", { class: "empty" }, "This run folder holds no episodes to analyse."),
    part("The errors", errors, run, stages),
    part("The behaviours", behaviours, run, stages),
    part("The curves of behaviours", behaviourCurves, data),
    part("The confidence", confidence, data),
    part("The retrieval", searching, stages),
    part("The timings", timings, data, stages),
  );
}

function stageName(stage) {
  return [h("i", { class: `key tone-${stageOf(stage).tone}` }), stageOf(stage).name];
}

/** A number of episodes as a link to them, where the address can say which. */
function episodesLink(run, stage, what, text) {
  return /^[\w-]+$/.test(stage) ? h("a", { href: `#/${run}/episodes/${stage}:${what}` }, text) : text;
}

function errors(run, stages) {
  const shown = stages.filter(([, { causes }]) => Object.keys(causes).some((name) => name !== "unscored"));
  if (!shown.length) return null;
  const names = [...new Set(shown.flatMap(([, { causes }]) => Object.keys(causes)))];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "What became of every episode"),
    h("ul", { class: "time-list causes-key" }, names.map((name) => h("li", { title: REPORT.causes[name] }, h("i", { class: `key tone-${CAUSE_TONES[name] || "other"}` }), spoken(name)))),
    h("div", { class: "causes" }, shown.map(([stage, { causes, episodes }]) => causeRow(run, stage, causes, episodes))),
    h("p", { class: "note" }, "Each episode counts once, under the first cause that holds: ", Object.entries(REPORT.causes).map(([name, rule], at) => [at > 0 && " ", h("b", null, spoken(name)), `: ${rule}`])),
  );
}

function causeRow(run, stage, causes, episodes) {
  let from = 0;
  const bars = Object.entries(causes).map(([name, number]) => {
    const width = (1000 * number) / episodes;
    from += width;
    return s("rect", { class: `bar-fill tone-${CAUSE_TONES[name] || "other"}`, x: from - width, width: Math.max(0, width - 2), height: 14 });
  });
  return h(
    "div",
    { class: "cause-row" },
    h("h3", null, stageName(stage), " ", h("small", null, count(episodes, "episode"))),
    s("svg", { viewBox: "0 0 1000 14", class: "time-bar", "aria-hidden": "true", preserveAspectRatio: "none" }, bars),
    h("ul", { class: "time-list" }, Object.entries(causes).map(([name, number]) => h("li", null, h("b", null, episodesLink(run, stage, name, number.toLocaleString("en"))), ` ${spoken(name)}`))),
  );
}

function behaviours(run, stages) {
  const names = Object.keys(REPORT.behaviours).filter((name) => stages.some(([, panel]) => panel.behaviours[name].k > 0));
  if (!names.length) return null;
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "What episodes do"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "Behaviours by stage" },
      h(
        "table",
        { class: "behaviour-table" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "Behaviour"), stages.map(([stage]) => h("th", { scope: "col" }, stageName(stage))))),
        h("tbody", null, names.map((name) => h("tr", null, h("th", { scope: "row" }, spoken(name), h("small", null, REPORT.behaviours[name])), stages.map(([stage, panel]) => h("td", null, behaviourCell(run, stage, name, panel)))))),
      ),
    ),
    h("p", { class: "note" }, "Share of the episodes that did not fail, found by fixed rules. Intervals are Wilson's, at 95 %, and stand only where each question was asked once: episodes of one question are no independent trials."),
  );
}

function behaviourCell(run, stage, name, { behaviours: rates, is_sample: isSample }) {
  const { k, n, value, low, high } = rates[name];
  if (!n) return "–";
  return [
    h("span", { class: "kind-figure" }, h("b", null, percent(value, 0)), h("small", null, k > 0 ? episodesLink(run, stage, name, `${k}/${n}`) : `${k}/${n}`)),
    isSample ? h("small", { class: "range" }, `${(100 * low).toFixed(0)} – ${percent(high, 0)}`) : null,
  ];
}

function behaviourCurves({ charts: { behaviours: shown } }) {
  return shown.length > 0 && h("section", { class: "curves" }, h("h2", null, "Behaviours over the steps of RL"), chartGrid(shown));
}

function confidence({ tables, charts }) {
  if (!tables.confidence) return null;
  return h(
    "section",
    { class: "curves" },
    h("h2", null, "How far confidence can be trusted"),
    tableOf(tables.confidence),
    chartGrid(charts.confidence),
    h("p", { class: "note" }, "Confidence is calibrated on development questions. An answer less sure than the promise allows is shown as not found; where nothing can be promised, all answers are shown with their confidence."),
  );
}

function searching(stages) {
  const shown = stages.filter(([, { retrieval: found }]) => found.empty[1] > 0 || found.found.k > 0);
  if (!shown.length) return null;
  const columns = ["Stage", "Gold page found", "All gold pages", "Right when found", "Right when not", "Searches that found nothing"];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "What searching finds"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "Retrieval by stage" },
      h(
        "table",
        { class: "retrieval-table" },
        h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, shown.map(([stage, panel]) => retrievalRow(stage, panel))),
      ),
    ),
    h("div", { class: "histograms" }, shown.map(([stage, { retrieval: found }]) => h(
      "div",
      null,
      h("h3", null, stageName(stage)),
      histogram("Searches per episode", found.searches, 0, "searches"),
      histogram("Search that first found a gold page", found.found_at, 0, "search"),
      histogram("Its rank there", found.rank, 0, "rank"),
    ))),
    h("p", { class: "note" }, "Of episodes that did not fail; gold pages are those that the question names. Intervals, Wilson's at 95 %, stand where each question was asked once."),
  );
}

function retrievalRow(stage, { retrieval: found, is_sample: isSample }) {
  const rate = ({ k, n, value, low, high }) => h("td", null, h("b", null, percent(value, 0)), h("small", null, n ? ` ${k}/${n}` : ""), n > 0 && isSample ? h("small", { class: "range" }, `${(100 * low).toFixed(0)} – ${percent(high, 0)}`) : null);
  const [empty, all] = found.empty;
  return h("tr", null, h("th", { scope: "row" }, stageName(stage)), rate(found.found), rate(found.complete), rate(found.right_if_found), rate(found.right_if_not), h("td", null, all ? [h("b", null, percent(empty / all, 0)), h("small", null, ` ${empty}/${all}`)] : "–"));
}

/** Bars with their numbers; the last place holds everything from there on. */
function histogram(title, values, first, word) {
  const total = values.reduce((sum, value) => sum + value, 0);
  if (!total) return null;
  const from = values.findIndex((value) => value > 0) > 0 && values[0] === 0 ? 1 : first;
  const most = Math.max(...values);
  const rows = values.slice(from).map((value, at) => {
    const place = at + from;
    const label = `${place}${place === 8 ? "+" : ""}`;
    return h("tr", null, h("th", { scope: "row" }, h("span", { class: "unseen" }, `${word} `), label), h("td", null, s("svg", { viewBox: "0 0 100 10", class: "bar", "aria-hidden": "true", preserveAspectRatio: "none" }, s("rect", { class: "bar-fill tone-base", width: (100 * value) / most, height: 10 }))), h("td", null, `${value} `, h("small", null, percent(value / total, 0))));
  });
  return h("table", { class: "histogram" }, h("caption", null, title), h("tbody", null, rows));
}
