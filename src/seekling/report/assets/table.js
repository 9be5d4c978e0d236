// The tables of figures: evaluations with their intervals, paired gains, kinds of question, several runs.

function results(data) {
  const rows = Object.entries(data.evaluations);
  if (!rows.length) return null;
  const isJudged = rows.some(([, summary]) => isObject(summary.judge));
  const columns = ["Stage", "Exact match", "k / n", "95 % interval", "F1", ...(isJudged ? ["Judge"] : []), "Searches per question", "Turns", "Gold page found"];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "Held-out questions"),
    h(
      "table",
      { class: "results stack" },
      h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map(([name, summary]) => resultRow(stageOf(`eval-${name}`), summary, isJudged))),
    ),
    conditions(rows.map(([name, summary]) => [stageOf(`eval-${name}`).name, summary])),
    costs(rows),
    figures(rows),
  );
}

/** What a question costs on average; units that nobody recorded are left out. */
function costs(rows) {
  const units = [
    ["Searches", "searches_per_question", decimals],
    ["Turns", "turns_per_question", decimals],
    ["Tokens written", "action_tokens_per_question", plain],
    ["Tokens of observations", "observation_tokens_per_question", plain],
    ["Tokens of prompts", "prompt_tokens_per_question", plain],
    ["Seconds", "wall_seconds_per_question", plain],
    ["Seconds of an episode", "seconds_per_question", plain],
    ["Dollars", "dollars_per_question", plain],
    ["Dollars in all", "dollars_total", plain],
  ].filter(([, name]) => rows.some(([, summary]) => isNumber(summary[name])));
  if (!units.length) return null;
  return scrolled("What a question costs", [
    h("thead", null, h("tr", null, ["Stage", ...units.map(([title]) => title)].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", null, rows.map(([name, summary]) => h("tr", null, h("th", { scope: "row" }, stageOf(`eval-${name}`).name), units.map(([, unit, show]) => h("td", null, show(summary[unit])))))),
  ]);
}

/** A table with a title that may be wider than the page. */
function scrolled(title, rows) {
  return h("section", { class: "inset" }, h("h3", null, title), h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title }, h("table", null, rows)));
}

/** Several samples of each question, or several seeds of one system, as one. */
function pooled(run) {
  const mine = (REPORT.pooled || []).filter((one) => one.runs.includes(run));
  if (!mine.length) return null;
  const ks = [...new Set(mine.flatMap(({ summary }) => Object.keys(summary.pass_at_k)))].sort((a, b) => a - b);
  const columns = ["Policy", "Of", "Exact match, mean", "Of each", "F1, mean", ...ks.map((k) => `pass@${k}`), "Majority vote"];
  return h(
    "section",
    { class: "panel" },
    scrolled("Several samples or seeds", [
      h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col" }, column)))),
      h("tbody", null, mine.map((one) => pooledRow(one, ks))),
    ]),
    h("p", { class: "note" }, "95 % intervals over questions: samples of one question are not independent. pass@k is the chance that one of k is right; the majority vote is on normalised answers."),
  );
}

function pooledRow({ policy, runs, seeds, summary }, ks) {
  const of = seeds.length ? `seeds ${seeds.join(", ")}` : `${summary.num_samples} samples`;
  const names = seeds.length ? runs.map((number) => REPORT.runs[number].name).join(", ") : "";
  const spread = isNumber(summary.em_deviation) ? `deviation ${(100 * summary.em_deviation).toFixed(1)} points` : "";
  const lost = summary.num_excluded ? `${count(summary.num_excluded, "episode")} left out` : "";
  return h(
    "tr",
    null,
    h("th", { scope: "row" }, stageOf(`eval-${policy}`).name),
    h("td", null, of, h("small", { class: "range" }, [names, count(summary.num_questions, "question"), lost].filter(Boolean).join("; "))),
    h("td", null, figure("", summary.em_mean)),
    h("td", null, summary.em_per_sample.map((rate) => `${rate.k}/${rate.n}`).join(", "), h("small", { class: "range" }, spread)),
    h("td", null, figure("", summary.f1_mean)),
    ks.map((k) => h("td", null, figure("", summary.pass_at_k[k]))),
    h("td", null, figure("", summary.majority)),
  );
}

/** Every other figure of the summaries, whatever it is called: a rate or mean with its interval, or a number. */
function figures(rows) {
  const isFigure = (value) => isNumber(value) || (isObject(value) && isNumber(value.low) && isNumber(value.high) && "value" in value);
  const names = [...new Set(rows.flatMap(([, summary]) => Object.keys(summary).filter((name) => isFigure(summary[name]))))];
  return h(
    "details",
    { class: "more" },
    h("summary", null, "All figures"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "All figures" },
      h(
        "table",
        { class: "figures" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "Figure"), rows.map(([name]) => h("th", { scope: "col" }, stageOf(`eval-${name}`).name)))),
        h("tbody", null, names.map((name) => h("tr", null, h("th", { scope: "row" }, spoken(name)), rows.map(([, summary]) => h("td", null, figure(name, summary[name])))))),
      ),
    ),
  );
}

function figure(name, value) {
  if (isNumber(value)) return /_rate$/.test(name) ? percent(value) : plain(value);
  if (!isObject(value) || !isNumber(value.value)) return "–";
  const of = isNumber(value.k) ? ` (${value.k}/${value.n})` : "";
  return [h("b", null, percent(value.value)), h("small", null, ` ${percent(value.low)} – ${percent(value.high)}${of}`)];
}

function resultRow(stage, summary, isJudged) {
  const { em, f1 = {}, gold_retrieved: gold = {} } = summary;
  const judge = isObject(summary.judge) ? summary.judge : {};
  return h(
    "tr",
    null,
    h("th", { scope: "row" }, h("i", { class: `key tone-${stage.tone}` }), stage.name),
    cell("Exact match", h("b", { class: "figure" }, percent(em.value))),
    cell("k / n", `${em.k} / ${em.n}`),
    cell("95 % interval", interval(em, stage.tone), "wide"),
    cell("F1", percent(f1.value), "", `95 % interval ${percent(f1.low)} to ${percent(f1.high)}`),
    isJudged && cell("Judge", percent(judge.value), "", isNumber(judge.n) ? `${judge.k} of ${judge.n}, 95 % interval ${percent(judge.low)} to ${percent(judge.high)}` : ""),
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
  const hashes = new Set(rows.map(([, summary]) => summary.question_set_hash));
  const lines = [];
  const games = new Map();
  for (const [name, { settings }] of rows) {
    if (isObject(settings)) games.set(game(settings), [...(games.get(game(settings)) || []), name]);
  }
  for (const [words, names] of games) lines.push(games.size === 1 ? words : `${names.join(", ")}: ${words}`);
  for (const [name, { judge_details: details }] of rows) {
    if (!isObject(details)) continue;
    const errors = Object.entries(isObject(details.errors) ? details.errors : {}).map(([cause, number]) => `${number} ${cause.replace(/_/g, " ")}`);
    lines.push(`${name}: judged by ${details.model}${errors.length ? `, without a verdict and left out: ${errors.join(", ")}` : ""}`);
  }
  lines.push(hashes.size === 1 ? `question set ${String([...hashes][0]).slice(0, 12)}` : "the rows were scored on different question sets and cannot be compared");
  for (const [name, summary] of rows) {
    for (const [cause, number] of Object.entries(summary.exclusions || {})) {
      lines.push(`${name}: ${count(number, "question")} of ${summary.num_questions} left out (${cause.replace(/_/g, " ")})`);
    }
  }
  return h("p", { class: "note" }, "Wilson intervals; F1 and EM after SQuAD normalisation; ", lines.join("; "), ".");
}

/** What was asked of the policy, in words. */
function game(settings) {
  const decoding = settings.temperature === 0 ? "greedy decoding" : `sampled at temperature ${plain(settings.temperature)}, top-p ${plain(settings.top_p)}${settings.min_p ? `, min-p ${plain(settings.min_p)}` : ""}`;
  if (settings.mode === "closed-book" || settings.mode === "gold-passage") return `${decoding}, ${settings.mode}, one generation, no search`;
  const oracle = settings.mode === "oracle-search" ? ", every search finds the gold pages" : "";
  return `${decoding}, ${settings.protocol} protocol, at most ${count(settings.max_generations, "generation")} of which ${settings.max_searching_turns} can search, ${settings.retrieval} top ${settings.top_k}${oracle}`;
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
