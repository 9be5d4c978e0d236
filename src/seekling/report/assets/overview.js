// The first view: what was run and how far it is, the tables, the learning curves.

const CURVES = [
  { stage: "dev", title: "Development questions", yLabel: "exact match", xLabel: "RL optimizer step (0: after SFT)", zero: true, top: 1, lines: [["em", "EM", "rl"], ["answered_rate", "answered", "base"]] },
  { stage: "sft", title: "SFT loss", yLabel: "nats per action token", zero: true, lines: [["loss", "loss", "sft"]] },
  { stage: "rl", title: "Reward", yLabel: "mean", zero: true, top: 1, lines: [["reward_mean", "reward", "train"], ["em_mean", "EM", "rl"], ["f1_mean", "F1", "sft"]] },
  { stage: "rl", title: "Searches", yLabel: "per episode", zero: true, lines: [["searches_mean", "searches", "rl"]] },
  { stage: "rl", title: "Action length", yLabel: "tokens per episode", zero: true, lines: [["action_tokens_mean", "tokens", "rl"]] },
  { stage: "rl", title: "Entropy", yLabel: "nats", zero: true, lines: [["entropy", "entropy", "rl"]] },
  { stage: "rl", title: "Sampler against learner", yLabel: "KL, nats", zero: true, lines: [["kl_sampler", "KL", "rl"], ["kl_reference", "KL to reference", "sft"]] },
  { stage: "rl", title: "Groups that teach nothing", yLabel: "groups", zero: true, lines: [["num_zero_variance_groups", "zero variance", "train"], ["num_groups", "all", "base"]] },
  { stage: "rl", title: "Episodes cut or failed", yLabel: "episodes", zero: true, lines: [["num_truncated_episodes", "truncated", "train"], ["num_failed_episodes", "failed", "bad"]] },
  { stage: "rl", title: "Unreadable actions", yLabel: "share of turns", zero: true, lines: [["invalid_rate", "invalid", "bad"]] },
  { stage: "rl", title: "Clipped tokens", yLabel: "share", zero: true, lines: [["clip_fraction_low", "low", "train"], ["clip_fraction_high", "high", "rl"]] },
  { stage: "rl", title: "Ratio to the old policy", yLabel: "per token", zero: true, lines: [["ratio_mean", "mean", "base"], ["ratio_max", "largest", "bad"]] },
  { stage: "rl", title: "Sampler's correction", yLabel: "effective sample", zero: true, top: 1, lines: [["correction_ess", "share of tokens", "rl"]] },
  { stage: "rl", title: "Gradient norm", yLabel: "before clipping", zero: true, lines: [["grad_norm", "norm", "base"]] },
  { stage: "rl", title: "Turns", yLabel: "per episode", zero: true, lines: [["turns_mean", "turns", "rl"]] },
  { stage: "rl", title: "Answered", yLabel: "share of episodes", zero: true, top: 1, lines: [["answered_rate", "answered", "rl"]] },
];
const TIME_CURVES = [
  { stage: "rl", title: "Time of a step", yLabel: "seconds", zero: true, lines: [["sample_s", "sampling", "sft"], ["learn_s", "learning", "rl"]] },
  { stage: "rl", title: "Throughput", yLabel: "tokens per second", zero: true, lines: [["tokens_per_s", "tokens per second", "rl"]] },
];
/** In the order of a run. */
const COURSE = ["expert", "sft", "rl", "eval-base", "eval-sft", "eval-rl"];
const NOT_CURVES = new Set(["step", "time_s", "rolled_back_to"]);

function overviewView(run) {
  const data = REPORT.runs[run];
  return h(
    "div",
    { class: "page" },
    part("The header", title, run, data),
    part("How far the run is", course, data),
    problems(data),
    warnings(data),
    health(data),
    REPORT.runs.length > 1 && part("The table of runs", allRuns),
    part("The table", results, data),
    part("Several samples or seeds", pooled, run),
    part("What each stage changed", gains, data, run),
    part("The kinds of question", kinds, data),
    part("The curves", curves, data),
    h("p", { class: "colophon" }, REPORT.live ? `Served by seekling ${REPORT.version} to this machine only.` : `Written by seekling ${REPORT.version} on ${REPORT.written.slice(0, 10)}. This page is one file and loads nothing.`),
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
    ["best policy", best(data)],
    ["seed", data.record.seed ?? data.recipe.seed],
    ["machine", machine(data.record.machine)],
    ["versions", versions(data.record.versions)],
    ["time", totalTime(data)],
    ["commit", typeof data.record.git_commit === "string" && data.record.git_commit.slice(0, 10)],
    ["episodes", index && index.count > 0 && index.count.toLocaleString("en")],
  ].filter(([, value]) => value !== undefined && value !== null && value !== false && value !== "");
  return h(
    "section",
    { class: "title" },
    h("h1", null, data.recipe.name || data.name),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
  );
}

/** Which policy was chosen, by which figure; it is no test figure. */
function best(data) {
  const chosen = data.progress.chosen;
  if (!isObject(chosen)) return null;
  const name = chosen.stage === "rl" ? `RL step ${plain(chosen.step)}` : "SFT";
  return chosen.n > 0 ? `${name} (${chosen.k}/${chosen.n} on dev)` : `${name}, the last`;
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

/** Stages that the recipe asks for and the run has not finished; none for a run that does not say what it has done. */
function openStages(data) {
  if (!Array.isArray(data.progress.done)) return [];
  const asked = setting(data, "eval", "stages");
  const isAsked = (stage) => !stage.startsWith("eval-") || !Array.isArray(asked) || asked.includes(stage.slice(5));
  const hasSft = setting(data, "experts", "file") !== "" || setting(data, "experts", "num_questions") !== 0;
  const hasRl = setting(data, "rl", "steps") !== 0;
  const isPart = (stage) => stage === "eval-base" || (stage.endsWith("rl") ? hasRl : hasSft);
  return COURSE.filter((stage) => isAsked(stage) && isPart(stage) && !data.progress.done.includes(stage));
}

function course(data) {
  const open = openStages(data);
  if (!open.length) return null;
  const done = COURSE.filter((stage) => data.progress.done.includes(stage));
  const step = (data.metrics[open[0]] || {}).step || [];
  const steps = open[0] === "rl" ? setting(data, "rl", "steps") : null;
  const where = step.length ? `step ${plain(step.at(-1))}${isNumber(steps) ? ` of ${plain(steps)}` : ""}` : "";
  return h(
    "section",
    { class: "panel" },
    h("h2", null, `This run is not finished: ${stageOf(open[0]).long.toLowerCase()}${where ? `, ${where}` : ""}`),
    h("ol", { class: "course" }, [...done, ...open].map((stage) => h("li", { class: open[0] === stage ? "is-now" : null }, `${done.includes(stage) ? "✓ " : ""}${stageOf(stage).name}`, h("span", { class: "unseen" }, done.includes(stage) ? " done" : open[0] === stage ? " now" : " to come")))),
  );
}

function problems(data) {
  if (!data.problems.length) return null;
  const isOpen = openStages(data).length > 0;
  return h(
    "section",
    { class: "notice", role: "note", "aria-label": "What is missing" },
    h("p", null, h("b", null, isOpen ? "Not there yet, or damaged." : "This run folder is incomplete."), " What is there is shown."),
    h("ul", null, data.problems.map((problem) => h("li", null, problem))),
  );
}

function warnings(data) {
  if (!data.warnings.length) return null;
  return h(
    "section",
    { class: "notice", role: "note", "aria-label": "What got worse" },
    h("p", null, h("b", null, "A stage made something worse."), " The same questions before and after it; unlikely to be chance (5 % level)."),
    h("ul", null, data.warnings.map((sentence) => h("li", null, sentence))),
  );
}

function health(data) {
  if (!data.health.length) return null;
  return h(
    "section",
    { class: "notice", role: "note", "aria-label": "Health of training" },
    h("p", null, h("b", null, "Signs of collapse in RL."), " Compared with its first steps; one alone may be a change of style."),
    h("ul", null, data.health.map((sentence) => h("li", null, sentence))),
  );
}

function curves(data) {
  const groups = Object.keys(data.metrics).filter((stage) => (data.metrics[stage].step || []).length);
  if (!groups.length) return null;
  const cursors = Object.fromEntries(groups.map((stage) => [stage, new Set()]));
  const main = CURVES.map((spec) => knownCurve(data, spec, cursors)).filter(Boolean);
  main.push(part("The behaviours", behaviourOverview, data, cursors));
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
  return series.length ? lineChart({ xLabel: `${spec.stage.toUpperCase()} optimizer step`, ...spec, series: distinct }, cursors[spec.stage]) : null;
}

function otherCurves(columns, stage, cursors) {
  const used = new Set([...CURVES, ...TIME_CURVES].filter((spec) => spec.stage === stage).flatMap((spec) => spec.lines.map(([name]) => name)));
  return Object.keys(columns)
    .filter((name) => !used.has(name) && !NOT_CURVES.has(name) && !name.startsWith("health_"))
    .map((name) => lineChart({ title: `${stage.toUpperCase()} ${spoken(name)}`, yLabel: name, xLabel: `${stage.toUpperCase()} optimizer step`, series: [{ name, tone: "base", xs: columns.step, ys: columns[name] }] }, cursors));
}
