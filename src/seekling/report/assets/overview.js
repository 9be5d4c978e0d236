// The first view: what was run, the table with its intervals, the paired gains, the curves, where the time went.

const CURVES = [
  { stage: "sft", title: "SFT loss", yLabel: "nats per action token", zero: true, lines: [["loss", "loss", "sft"]] },
  { stage: "rl", title: "Reward", yLabel: "mean", zero: true, top: 1, lines: [["reward_mean", "reward", "train"], ["em_mean", "EM", "rl"], ["f1_mean", "F1", "sft"]] },
  { stage: "rl", title: "Searches", yLabel: "per episode", zero: true, lines: [["searches_mean", "searches", "rl"]] },
  { stage: "rl", title: "Action length", yLabel: "tokens per episode", zero: true, lines: [["action_tokens_mean", "tokens", "rl"]] },
  { stage: "rl", title: "Entropy", yLabel: "nats", zero: true, lines: [["entropy", "entropy", "rl"]] },
  { stage: "rl", title: "Sampler against learner", yLabel: "KL, nats", zero: true, lines: [["kl_sampler", "KL", "rl"], ["kl_reference", "KL to reference", "sft"]] },
  { stage: "rl", title: "Groups that teach nothing", yLabel: "groups", zero: true, lines: [["num_zero_variance_groups", "zero variance", "train"], ["num_groups", "all", "base"]] },
  { stage: "rl", title: "Episodes cut or failed", yLabel: "episodes", zero: true, lines: [["num_truncated_episodes", "truncated", "train"], ["num_failed_episodes", "failed", "bad"]] },
  { stage: "rl", title: "Unreadable actions", yLabel: "share of turns", zero: true, lines: [["invalid_rate", "invalid", "bad"]] },
  { stage: "rl", title: "Gradient norm", yLabel: "before clipping", zero: true, lines: [["grad_norm", "norm", "base"]] },
  { stage: "rl", title: "Time of a step", yLabel: "seconds", zero: true, lines: [["sample_s", "sampling", "sft"], ["learn_s", "learning", "rl"]] },
];
const NOT_CURVES = new Set(["step", "time_s"]);

function overviewView(run) {
  const data = REPORT.runs[run];
  return h(
    "div",
    { class: "page" },
    part("The header", title, run, data),
    problems(data),
    REPORT.runs.length > 1 && part("The table of runs", allRuns),
    part("The table", results, data),
    part("What each stage changed", gains, data, run),
    part("The kinds of question", kinds, data),
    part("The curves", curves, data),
    part("The timings", timings, data),
    h("p", { class: "colophon" }, `Written by seekling ${REPORT.version} on ${REPORT.written.slice(0, 10)}. This page is one file and loads nothing.`),
  );
}

function setting(data, section, name) {
  const of = (source) => (isObject(source) && isObject(source[section]) ? source[section][name] : undefined);
  return of(data.recipe) ?? of(REPORT.defaults);
}

function title(run, data) {
  const index = indexOf(run);
  const hasRecipe = Object.keys(data.recipe).length > 0;
  const model = isObject(data.record.model) ? data.record.model.resolved : data.record.model;
  const facts = [
    ["model", typeof model === "string" ? model : hasRecipe && setting(data, "model", "spec")],
    ["protocol", hasRecipe && setting(data, "env", "protocol")],
    ["seed", data.record.seed ?? data.recipe.seed],
    ["machine", machine(data.record.machine)],
    ["versions", versions(data.record.versions)],
    ["time", totalTime(data)],
    ["episodes", index && index.count > 0 && index.count.toLocaleString("en")],
  ].filter(([, value]) => value !== undefined && value !== null && value !== false && value !== "");
  return h(
    "section",
    { class: "title" },
    h("h1", null, data.recipe.name || data.name),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
  );
}

function machine(value) {
  if (!isObject(value)) return value;
  return Object.entries(value)
    .filter(([, part]) => part !== null && part !== false && !isObject(part) && !Array.isArray(part))
    .map(([name, part]) => (part === true ? name : typeof part === "number" ? quantity(name, part) : String(part)))
    .slice(0, 4)
    .join(", ");
}

/** {memory_gb: 15.6} reads "15.6 GB memory", {cores: 2} reads "2 cores". */
function quantity(name, value) {
  const unit = /_(gb|gib|mb|bytes|s)$/.exec(name);
  const words = (unit ? name.slice(0, unit.index) : name).replace(/^num_/, "").replace(/_/g, " ");
  if (unit && unit[1] === "bytes") return `${plain(value / 1e9)} GB ${words}`;
  return `${plain(value)} ${unit ? `${unit[1].toUpperCase()} ` : ""}${words}`;
}

function versions(value) {
  if (!isObject(value)) return null;
  const shown = ["seekling", "torch"].filter((name) => value[name]);
  return shown.map((name) => `${name} ${value[name]}`).join(", ");
}

function stageTimes(data) {
  const times = data.record.timings_s ?? data.record.timings;
  return isObject(times) ? Object.entries(times).filter(([, value]) => isNumber(value)) : [];
}

function totalTime(data) {
  const total = stageTimes(data).reduce((sum, [, value]) => sum + value, 0);
  return total > 0 ? duration(total) : null;
}

function problems(data) {
  if (!data.problems.length) return null;
  return h(
    "section",
    { class: "notice", role: "note", "aria-label": "What is missing" },
    h("p", null, h("b", null, "This run folder is incomplete."), " What is there is shown."),
    h("ul", null, data.problems.map((problem) => h("li", null, problem))),
  );
}

function results(data) {
  const rows = Object.entries(data.evaluations);
  if (!rows.length) return null;
  const columns = ["Stage", "Exact match", "k / n", "95 % interval", "F1", "Searches per question", "Turns", "Gold page found"];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "Held-out questions"),
    h(
      "table",
      { class: "results stack" },
      h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map(([name, summary]) => resultRow(stageOf(`eval-${name}`), summary))),
    ),
    conditions(rows.map(([name, summary]) => [stageOf(`eval-${name}`).name, summary])),
  );
}

function resultRow(stage, summary) {
  const { em, f1 = {}, gold_retrieved: gold = {} } = summary;
  return h(
    "tr",
    null,
    h("th", { scope: "row" }, h("i", { class: `key tone-${stage.tone}` }), stage.name),
    cell("Exact match", h("b", { class: "figure" }, percent(em.value))),
    cell("k / n", `${em.k} / ${em.n}`),
    cell("95 % interval", interval(em, stage.tone), "wide"),
    cell("F1", percent(f1.value), "", `95 % interval ${percent(f1.low)} to ${percent(f1.high)}`),
    cell("Searches", decimals(summary.searches_per_question)),
    cell("Turns", decimals(summary.turns_per_question)),
    cell("Gold page", gold.n ? percent(gold.value, 0) : "–", "", gold.n ? `${gold.k} of ${gold.n} questions with a known page` : ""),
  );
}

function interval(rate, tone) {
  const label = `${percent(rate.low)} to ${percent(rate.high)}`;
  return h(
    "span",
    { class: "interval-cell" },
    intervalPlot({ value: rate.value, low: rate.low, high: rate.high, from: 0, to: 1, tone, label }),
    h("small", null, `${(100 * rate.low).toFixed(1)} – ${(100 * rate.high).toFixed(1)}`),
  );
}

function cell(label, content, name = "", tip = "") {
  return h("td", { "data-label": label, class: name || null, title: tip || null }, content);
}

function decimals(value) {
  return isNumber(value) ? value.toFixed(2) : "–";
}

/** Under which rules the figures were made: what must be known before anyone quotes them. */
function conditions(rows) {
  const settings = rows.map(([, summary]) => summary.settings).find(isObject);
  const hashes = new Set(rows.map(([, summary]) => summary.question_set_hash));
  const lines = [];
  if (settings) {
    const decoding = settings.temperature === 0 ? "greedy decoding" : `sampled at temperature ${plain(settings.temperature)}, top-p ${plain(settings.top_p)}`;
    lines.push(`${decoding}, ${settings.protocol} protocol, at most ${count(settings.max_generations, "generation")} of which ${settings.max_searching_turns} can search, ${settings.retrieval} top ${settings.top_k}`);
  }
  lines.push(hashes.size === 1 ? `question set ${String([...hashes][0]).slice(0, 12)}` : "the rows were scored on different question sets and cannot be compared");
  for (const [name, summary] of rows) {
    for (const [cause, number] of Object.entries(summary.exclusions || {})) {
      lines.push(`${name}: ${count(number, "question")} of ${summary.num_questions} left out (${cause.replace(/_/g, " ")})`);
    }
  }
  return h("p", { class: "note" }, "Wilson intervals; F1 and EM after SQuAD normalisation; ", lines.join("; "), ".");
}

function gains(data, run) {
  const order = (one) => ["eval-sft eval-rl", "eval-base eval-sft", "eval-base eval-rl"].indexOf(`${one.first} ${one.second}`);
  const known = data.comparisons.filter((one) => order(one) >= 0);
  if (!known.length) return null;
  known.sort((a, b) => order(a) - order(b));
  const reach = Math.max(0.1, ...known.flatMap(({ em_difference: gap }) => [Math.abs(gap.low), Math.abs(gap.high)]));
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "What each stage changed"),
    h("div", { class: "gains" }, known.map((one) => gain(one, Math.min(1, reach * 1.05), run))),
    h("p", { class: "note" }, "Exact match, second minus first, question by question: paired bootstrap over the questions that both scored; p is McNemar's, exact and two-sided."),
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
      [flips(one, "won", one.num_wins, run), flips(one, "lost", one.num_losses, run), `${one.num_both} both right`, `${one.num_neither} neither`, `n = ${one.num_questions}`, `p ${pValue(one.mcnemar_p)}`].map((text) => [h("span", null, text), " "]),
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
  if (!isNumber(value)) return "unknown";
  return value < 0.001 ? "< 0.001" : `= ${value.toPrecision(2)}`;
}

function kinds(data) {
  const rows = Object.entries(data.evaluations).filter(([, summary]) => isObject(summary.by_kind));
  const names = [...new Set(rows.flatMap(([, summary]) => Object.keys(summary.by_kind)))];
  if (names.length < 2) return null;
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "By kind of question"),
    h(
      "table",
      { class: "kinds" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Kind"), rows.map(([name]) => h("th", { scope: "col" }, stageOf(`eval-${name}`).name)))),
      h("tbody", null, names.map((kind) => h("tr", null, h("th", { scope: "row" }, kind || "(none)"), rows.map(([name, summary]) => kindCell(summary.by_kind[kind], stageOf(`eval-${name}`).tone))))),
    ),
  );
}

function kindCell(group, tone) {
  if (!group) return h("td", null, "–");
  const { em } = group;
  const title = `${percent(em.value)}, 95 % interval ${percent(em.low)} to ${percent(em.high)}`;
  const bar = s("svg", { viewBox: "0 0 100 6", class: "bar", "aria-hidden": "true", preserveAspectRatio: "none" }, s("rect", { class: "bar-rest", width: 100, height: 6 }), s("rect", { class: `bar-fill tone-${tone}`, width: 100 * (em.value || 0), height: 6 }));
  return h("td", { title }, h("span", { class: "kind-figure" }, h("b", null, percent(em.value, 0)), h("small", null, `${em.k}/${em.n}`)), bar);
}

function curves(data) {
  const groups = Object.keys(data.metrics).filter((stage) => (data.metrics[stage].step || []).length);
  if (!groups.length) return null;
  const cursors = Object.fromEntries(groups.map((stage) => [stage, new Set()]));
  const main = CURVES.map((spec) => knownCurve(data, spec, cursors)).filter(Boolean);
  const rest = groups.flatMap((stage) => otherCurves(data.metrics[stage], stage, cursors[stage]));
  return h(
    "section",
    { class: "curves" },
    h("h2", null, "Learning curves"),
    h("div", { class: "chart-grid" }, main),
    rest.length > 0 && h("details", { class: "more" }, h("summary", null, count(rest.length, "more curve")), h("div", { class: "chart-grid" }, rest)),
  );
}

function knownCurve(data, spec, cursors) {
  const columns = data.metrics[spec.stage];
  if (!columns || !columns.step) return null;
  const series = spec.lines
    .filter(([name]) => columns[name] && columns[name].some(isNumber))
    .map(([name, label, tone]) => ({ name: label, tone, xs: columns.step, ys: columns[name] }));
  // Under an exact-match reward the two curves are one; a line hidden under another only confuses.
  const distinct = [];
  for (const one of series) {
    const twin = distinct.find((other) => other.ys.every((y, at) => y === one.ys[at]));
    if (twin) twin.name += ` = ${one.name}`;
    else distinct.push(one);
  }
  return series.length ? lineChart({ ...spec, xLabel: `${spec.stage.toUpperCase()} optimizer step`, series: distinct }, cursors[spec.stage]) : null;
}

function otherCurves(columns, stage, cursors) {
  const used = new Set(CURVES.filter((spec) => spec.stage === stage).flatMap((spec) => spec.lines.map(([name]) => name)));
  return Object.keys(columns)
    .filter((name) => !used.has(name) && !NOT_CURVES.has(name))
    .map((name) => lineChart({ title: `${stage.toUpperCase()} ${name.replace(/_/g, " ")}`, yLabel: name, xLabel: `${stage.toUpperCase()} optimizer step`, series: [{ name, tone: "base", xs: columns.step, ys: columns[name] }] }, cursors));
}

function timings(data) {
  const times = stageTimes(data);
  const total = times.reduce((sum, [, value]) => sum + value, 0);
  if (!total) return null;
  let from = 0;
  const tones = ["expert", "sft", "train", "base", "sft", "rl"];
  const parts = times.map(([name, value], i) => {
    const part = s("rect", { class: `bar-fill tone-${stageTone(name, tones[i % tones.length])}`, x: from, width: Math.max(0, (1000 * value) / total - 3), height: 14, rx: 2 });
    from += (1000 * value) / total;
    return part;
  });
  return h(
    "section",
    { class: "panel" },
    h("h2", null, `Where the time went: ${duration(total)}`),
    s("svg", { viewBox: "0 0 1000 14", class: "time-bar", "aria-hidden": "true", preserveAspectRatio: "none" }, parts),
    h("ul", { class: "time-list" }, times.map(([name, value], i) => h("li", null, h("i", { class: `key tone-${stageTone(name, tones[i % tones.length])}` }), `${name} `, h("b", null, duration(value))))),
  );
}

function stageTone(name, otherwise) {
  const known = { collect: "expert", expert: "expert", sft: "sft", rl: "train", eval: "base" };
  return known[name] || (STAGES[name] ? STAGES[name].tone : otherwise);
}

function allRuns() {
  const rows = REPORT.runs.flatMap((data, run) => Object.entries(data.evaluations).map(([name, summary]) => ({ run, data, name, summary })));
  const hashes = new Set(rows.map(({ summary }) => summary.question_set_hash));
  return h(
    "section",
    { class: "panel" },
    h("h2", null, count(REPORT.runs.length, "run")),
    h(
      "table",
      { class: "results stack" },
      h("thead", null, h("tr", null, ["Run", "Stage", "Exact match", "k / n", "95 % interval", "Question set"].map((name) => h("th", { scope: "col" }, name)))),
      h(
        "tbody",
        null,
        rows.map(({ run, data, name, summary }) =>
          h(
            "tr",
            null,
            h("th", { scope: "row" }, h("a", { href: `#/${run}/overview` }, data.name)),
            cell("Stage", [h("i", { class: `key tone-${stageOf(`eval-${name}`).tone}` }), stageOf(`eval-${name}`).name]),
            cell("Exact match", h("b", { class: "figure" }, percent(summary.em.value))),
            cell("k / n", `${summary.em.k} / ${summary.em.n}`),
            cell("95 % interval", interval(summary.em, stageOf(`eval-${name}`).tone), "wide"),
            cell("Question set", h("code", null, String(summary.question_set_hash).slice(0, 8))),
          ),
        ),
      ),
    ),
    hashes.size > 1 && h("p", { class: "note warn" }, "These rows were scored on different question sets: do not compare them across sets."),
  );
}
