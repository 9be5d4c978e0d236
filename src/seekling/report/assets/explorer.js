// The episode explorer: filters, and a list that draws only the rows in sight. The episode beside it is in detail.js.

const ROW = 84;
const NO_FILTER = { stage: "", outcome: "", kind: "", behaviour: "", question: null, words: "" };
const ORDERS = {
  "": { name: "As recorded" },
  best: { name: "Highest reward", column: "reward", sign: -1 },
  worst: { name: "Lowest reward", column: "reward", sign: 1 },
  searches: { name: "Most searches", column: "searches", sign: -1 },
  tokens: { name: "Most tokens", column: "tokens", sign: -1 },
  seconds: { name: "Slowest", column: "seconds", sign: -1 },
};
const explorer = { run: null, ...NO_FILTER, order: "", shown: [], at: 0, isSideBySide: false, search: 0 };

function episodesView(run, wanted) {
  const index = indexOf(run);
  if (!index || !index.count) {
    explorer.view = null;
    return h("div", { class: "page" }, problems(REPORT.runs[run]), h("p", { class: "empty" }, "This run folder holds no episodes."));
  }
  if (explorer.run !== run) Object.assign(explorer, { run, ...NO_FILTER, stage: firstStage(index), at: 0 });
  if (typeof wanted === "string") applyFilter(index, wanted);
  if (isNumber(wanted) && wanted < index.count && !matcher(run)(wanted)) Object.assign(explorer, NO_FILTER);
  const view = h("div", { class: "explorer" }, h("h1", { class: "unseen" }, "Episodes"), h("section", { class: "side", "aria-label": "Episodes" }, filters(run, index), listBox()), h("section", { class: "detail", id: "detail", tabindex: -1, "aria-label": "Episode" }));
  explorer.view = view;
  refilter(run, isNumber(wanted) ? wanted : null);
  view.classList.toggle("is-reading", isNumber(wanted));
  return view;
}

/** A filter in the address, such as eval-rl:lost, eval-rl:misread or rl:repetition. */
function applyFilter(index, text) {
  const [stage, what = ""] = text.split(":");
  const isBehaviour = index.behaviours.includes(what);
  const outcome = index.causes.includes(what) && what ? `cause:${what}` : what;
  Object.assign(explorer, NO_FILTER, { stage, behaviour: isBehaviour ? what : "", outcome: isBehaviour ? "" : outcome, at: 0 });
}

function firstStage(index) {
  return ["eval-rl", "eval-sft", "eval-base"].find((stage) => index.stages.includes(stage)) || "";
}

function filters(run, index) {
  const search = h("input", {
    type: "search", id: "words", placeholder: "Search questions and text  /", "aria-label": "Search questions, answers and text", value: explorer.words, autocomplete: "off", spellcheck: "false",
    oninput: (event) => {
      clearTimeout(explorer.timer);
      explorer.timer = setTimeout(() => change(run, { words: event.target.value }), 120);
    },
  });
  return h(
    "form",
    { class: "filters", onsubmit: (event) => event.preventDefault() },
    search,
    h("div", { class: "filter-row", id: "choices" }, choices(run, index)),
    h("p", { class: "tally" }, h("span", { id: "tally", "aria-live": "polite" }), h("span", { id: "only" })),
  );
}

/** One menu per thing to choose by; those with nothing to choose are left out. */
function choices(run, index) {
  const choice = (name, label, options) =>
    options.length > 1 && h(
      "select",
      { "aria-label": label, "data-filter": name, onchange: (event) => change(run, { [name]: event.target.value }) },
      options.map(([value, text, parts]) =>
        parts ? h("optgroup", { label: text }, parts.map(([value, text]) => h("option", { value, selected: explorer[name] === value }, text))) : h("option", { value, selected: explorer[name] === value }, text),
      ),
    );
  const kindNames = [...new Set(index.questions.map((question) => question.kind))].filter(Boolean).sort();
  const outcomes = Object.keys(OUTCOMES).filter((name) => index.columns.outcome.includes(name));
  const causes = index.causes.filter((name, at) => name && index.columns.cause.includes(at));
  const shown = index.columns.behaviours.reduce((all, mask) => all | mask, 0);
  const behaviours = index.behaviours.filter((name, at) => shown & (1 << at));
  return [
    choice("stage", "Stage", [["", "All stages"], ...index.stages.map((stage) => [stage, stageOf(stage).name])]),
    choice("outcome", "Outcome", [
      ["", "Outcome"], ...outcomes.map((name) => [name, OUTCOMES[name].name]), ["won", "newly right"], ["lost", "newly wrong"],
      ...(causes.length ? [["", "Because", causes.map((name) => [`cause:${name}`, spoken(name)])]] : []),
    ]),
    choice("behaviour", "Behaviour", [["", "Behaviour"], ...behaviours.map((name) => [name, spoken(name)])]),
    choice("kind", "Kind of question", [["", "Kind"], ...kindNames.map((kind) => [kind, kind])]),
    choice("order", "Order", Object.entries(ORDERS).map(([value, { name }]) => [value, name])),
  ];
}

function listBox() {
  const rows = h("div", { class: "rows", role: "presentation" });
  return h("div", { class: "list", id: "list", role: "listbox", tabindex: 0, "aria-label": "Episodes", onscroll: () => drawRows() }, rows);
}

function change(run, what) {
  Object.assign(explorer, what);
  refilter(run, null);
}

/** Whether an episode passes the filters, text search aside, as a function of its number. */
function matcher(run) {
  const { columns, questions, stages, behaviours, causes } = indexOf(run);
  const { stage, outcome, kind, behaviour, question } = explorer;
  const bit = 1 << behaviours.indexOf(behaviour);
  const cause = outcome.startsWith("cause:") ? causes.indexOf(outcome.slice(6)) : null;
  const outcomeOf = outcome === "won" || outcome === "lost" ? changesOf(run) : columns.outcome;
  return (number) => {
    if (stage && stages[columns.stage[number]] !== stage) return false;
    if (question !== null && columns.question[number] !== question) return false;
    if (behaviour && !(columns.behaviours[number] & bit)) return false;
    if (cause !== null) { if (columns.cause[number] !== cause) return false; }
    else if (outcome && outcomeOf[number] !== outcome) return false;
    return !(kind && questions[columns.question[number]].kind !== kind);
  };
}

/** Numbers of the episodes that pass the filters, in the chosen order. */
function candidatesOf(run) {
  const { count: total, columns } = indexOf(run);
  const passes = matcher(run);
  const found = [];
  for (let number = 0; number < total; number += 1) if (passes(number)) found.push(number);
  const { column, sign } = ORDERS[explorer.order];
  if (!column) return found;
  const value = (number) => columns[column][number] ?? (sign > 0 ? Infinity : -Infinity);
  return found.sort((a, b) => (value(a) === value(b) ? a - b : sign * (value(a) - value(b))));
}

/** Apply the filters at once, then the text search slice by slice, so that typing never waits for megabytes. */
function refilter(run, wanted) {
  const candidates = candidatesOf(run);
  const said = explorer.words.trim().toLowerCase();
  explorer.search += 1;
  explorer.shown = said ? [] : candidates;
  explorer.at = Math.max(0, wanted === null ? 0 : explorer.shown.indexOf(wanted));
  if (said) searchThrough(run, candidates, said, explorer.search);
  else showFiltered(run, false);
}

function searchThrough(run, candidates, said, search, from = 0) {
  if (search !== explorer.search) return;
  const until = performance.now() + 25;
  const before = explorer.shown.length;
  let at = from;
  while (at < candidates.length && performance.now() < until) {
    if (holds(run, candidates[at], said)) explorer.shown.push(candidates[at]);
    at += 1;
  }
  if (from === 0 || before === 0) showFiltered(run, at < candidates.length);
  else tally(run, at < candidates.length);
  if (at < candidates.length) setTimeout(() => searchThrough(run, candidates, said, search, at), 0);
  else drawRows();
}

function holds(run, number, said) {
  const { columns, questions } = indexOf(run);
  const { question, answers, id } = questions[columns.question[number]];
  if (`${question}\n${id}\n${answers.join("\n")}\n${columns.answer[number]}`.toLowerCase().includes(said)) return true;
  return searchTextAt(run, number).includes(said);
}

function tally(run, isSearching) {
  const found = explorer.shown.length;
  const all = indexOf(run).count;
  replace(find("#tally"), `${found.toLocaleString("en")} of ${count(all, "episode")}${isSearching ? ", searching…" : ""}`);
  const isOne = explorer.question !== null;
  replace(find("#only"), isOne && h("button", { type: "button", class: "only", onclick: () => change(run, { question: null }) }, "one question ", h("span", { "aria-hidden": "true" }, "✕"), h("span", { class: "unseen" }, "show all questions")));
  find(".rows").style.height = `${found * ROW}px`;
}

function showFiltered(run, isSearching) {
  tally(run, isSearching);
  scrollToSelected();
  drawRows();
  drawDetail();
}

function find(selector) {
  return explorer.view.querySelector(selector);
}

function drawRows() {
  const box = find("#list");
  const height = box.clientHeight || 800;
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 6);
  const last = Math.min(explorer.shown.length, Math.ceil((box.scrollTop + height) / ROW) + 6);
  const rows = [];
  for (let at = first; at < last; at += 1) rows.push(rowItem(at));
  replace(find(".rows"), rows);
  // Only what is in the document can be pointed at.
  if (explorer.at >= first && explorer.at < last) box.setAttribute("aria-activedescendant", `row-${explorer.at}`);
  else box.removeAttribute("aria-activedescendant");
}

function rowItem(at) {
  const row = rowAt(explorer.run, explorer.shown[at]);
  const stage = stageOf(row.stage);
  const isSelected = at === explorer.at;
  const facts = [stage.name, row.stage === "rl" ? `step ${row.step}` : row.question.kind, ...orderFacts(row), row.shortAnswer && `“${cut(row.shortAnswer, 60)}”`];
  const item = h(
    "div",
    {
      class: isSelected ? "row is-selected" : "row", role: "option", id: `row-${at}`, "aria-selected": isSelected ? "true" : "false",
      "aria-setsize": explorer.shown.length, "aria-posinset": at + 1, onclick: () => { select(at); read(); },
    },
    h("span", { class: `sign sign-${row.outcome}`, title: OUTCOMES[row.outcome].name, "aria-label": OUTCOMES[row.outcome].name, role: "img" }, OUTCOMES[row.outcome].sign),
    h("span", { class: "row-question" }, cut(row.question.question, 220)),
    h("span", { class: "row-facts" }, h("i", { class: `key tone-${stage.tone}` }), facts.filter(Boolean).join(" · ")),
  );
  item.style.top = `${at * ROW}px`;
  return item;
}

function orderFacts(row) {
  if (explorer.order === "best" || explorer.order === "worst") return [`reward ${plain(row.reward)}`];
  if (explorer.order === "tokens") return [count(row.tokens, "token")];
  if (explorer.order === "seconds") return [duration(row.seconds)];
  return [count(row.searches, "search", "searches")];
}

function select(at) {
  if (!explorer.shown.length) return;
  explorer.at = Math.min(explorer.shown.length - 1, Math.max(0, at));
  scrollToSelected();
  drawRows();
  drawDetail();
}

function scrollToSelected() {
  const box = find("#list");
  const top = explorer.at * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
}

/** On a narrow screen the episode takes the place of the list. */
function read() {
  if (!explorer.shown.length) return;
  explorer.view.classList.add("is-reading");
  find("#detail").focus({ preventScroll: true });
  remember(explorer.run, explorer.shown[explorer.at]);
}

function backToList() {
  explorer.view.classList.remove("is-reading");
  find("#list").focus({ preventScroll: true });
  scrollToSelected();
  drawRows();
}

function explorerKey(event) {
  const input = find("#words");
  if (event.target === input) {
    if (event.key === "Escape") {
      if (input.value) { input.value = ""; change(explorer.run, { words: "" }); }
      else input.blur();
    } else if (event.key === "Enter" || event.key === "ArrowDown") find("#list").focus();
    else return false;
    return true;
  }
  if (event.target.tagName === "SELECT") return false;
  const isList = event.target === find("#list");
  if (event.key === "j" || (isList && event.key === "ArrowDown")) select(explorer.at + 1);
  else if (event.key === "k" || (isList && event.key === "ArrowUp")) select(explorer.at - 1);
  else if (isList && event.key === "PageDown") select(explorer.at + 10);
  else if (isList && event.key === "PageUp") select(explorer.at - 10);
  else if (isList && event.key === "Home") select(0);
  else if (isList && event.key === "End") select(explorer.shown.length - 1);
  else if (event.key === "/") input.focus();
  else if (event.key === "Enter" && !["BUTTON", "SUMMARY", "A"].includes(event.target.tagName)) read();
  else if (event.key === "Escape") backToList();
  else if (event.key === "c") { explorer.isSideBySide = !explorer.isSideBySide; drawDetail(); }
  else if (event.key === "t") nextPaint();
  else return false;
  return true;
}
