// The episode explorer: filters, a list that draws only the rows in sight, and the episode beside it.

const ROW = 84;
const explorer = { run: null, stage: "", outcome: "", kind: "", words: "", shown: [], at: 0, isSideBySide: false, search: 0 };

function episodesView(run, wanted) {
  const index = indexOf(run);
  if (!index || !index.count) {
    return h("div", { class: "page" }, problems(REPORT.runs[run]), h("p", { class: "empty" }, "This run folder holds no episodes."));
  }
  if (explorer.run !== run) Object.assign(explorer, { run, stage: firstStage(index), outcome: "", kind: "", words: "", at: 0 });
  if (typeof wanted === "string") applyFilter(wanted);
  if (isNumber(wanted) && wanted < index.count && !matches(run, wanted)) Object.assign(explorer, { stage: "", outcome: "", kind: "", words: "" });
  const view = h("div", { class: "explorer" }, h("h1", { class: "unseen" }, "Episodes"), h("section", { class: "side", "aria-label": "Episodes" }, filters(run, index), listBox()), h("section", { class: "detail", id: "detail", tabindex: -1, "aria-label": "Episode" }));
  explorer.view = view;
  refilter(run, isNumber(wanted) ? wanted : null);
  view.classList.toggle("is-reading", isNumber(wanted));
  return view;
}

/** A filter in the address, such as eval-rl:lost. */
function applyFilter(text) {
  const [stage, outcome = ""] = text.split(":");
  Object.assign(explorer, { stage, outcome, kind: "", words: "", at: 0 });
}

function firstStage(index) {
  return ["eval-rl", "eval-sft", "eval-base"].find((stage) => index.stages.includes(stage)) || "";
}

function filters(run, index) {
  const choice = (name, label, options) =>
    h(
      "select",
      { "aria-label": label, onchange: (event) => change(run, { [name]: event.target.value }) },
      options.map(([value, text]) => h("option", { value, selected: explorer[name] === value }, text)),
    );
  const kindNames = [...new Set(index.questions.map((question) => question.kind))].filter(Boolean).sort();
  const outcomes = [...new Set(index.columns.outcome)];
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
    h(
      "div",
      { class: "filter-row" },
      choice("stage", "Stage", [["", "All stages"], ...index.stages.map((stage) => [stage, stageOf(stage).name])]),
      choice("outcome", "Outcome", [["", "Any outcome"], ...Object.keys(OUTCOMES).filter((name) => outcomes.includes(name)).map((name) => [name, OUTCOMES[name].name]), ["won", "newly right"], ["lost", "newly wrong"]]),
      kindNames.length > 0 && choice("kind", "Kind", [["", "Any kind"], ...kindNames.map((kind) => [kind, kind])]),
    ),
    h("p", { class: "tally", id: "tally", "aria-live": "polite" }),
  );
}

function listBox() {
  const rows = h("div", { class: "rows", role: "presentation" });
  const box = h("div", { class: "list", id: "list", role: "listbox", tabindex: 0, "aria-label": "Episodes", onscroll: () => drawRows() }, rows);
  return box;
}

function change(run, what) {
  Object.assign(explorer, what);
  refilter(run, null);
}

function matches(run, number) {
  const { columns, questions, stages } = indexOf(run);
  if (explorer.stage && stages[columns.stage[number]] !== explorer.stage) return false;
  const { outcome } = explorer;
  if (outcome && (outcome === "won" || outcome === "lost" ? changesOf(run)[number] : columns.outcome[number]) !== outcome) return false;
  return !(explorer.kind && questions[columns.question[number]].kind !== explorer.kind);
}

/** Apply the filters at once, then the text search slice by slice, so that typing never waits for megabytes. */
function refilter(run, wanted) {
  const { count: total } = indexOf(run);
  const candidates = [];
  for (let number = 0; number < total; number += 1) if (matches(run, number)) candidates.push(number);
  const words = explorer.words.trim().toLowerCase();
  explorer.search += 1;
  explorer.shown = words ? [] : candidates;
  explorer.at = Math.max(0, wanted === null ? 0 : explorer.shown.indexOf(wanted));
  if (words) searchThrough(run, candidates, words, explorer.search);
  else showFiltered(run, false);
}

function searchThrough(run, candidates, words, search, from = 0) {
  if (search !== explorer.search) return;
  const until = performance.now() + 25;
  const before = explorer.shown.length;
  let at = from;
  while (at < candidates.length && performance.now() < until) {
    if (holds(run, candidates[at], words)) explorer.shown.push(candidates[at]);
    at += 1;
  }
  if (from === 0 || before === 0) showFiltered(run, at < candidates.length);
  else tally(run, at < candidates.length);
  if (at < candidates.length) setTimeout(() => searchThrough(run, candidates, words, search, at), 0);
  else drawRows();
}

function holds(run, number, words) {
  const { columns, questions } = indexOf(run);
  const { question, answers, id } = questions[columns.question[number]];
  if (`${question}\n${id}\n${answers.join("\n")}\n${columns.answer[number]}`.toLowerCase().includes(words)) return true;
  return searchTextAt(run, number).includes(words);
}

function tally(run, isSearching) {
  const found = explorer.shown.length;
  const all = indexOf(run).count;
  replace(find("#tally"), `${found.toLocaleString("en")} of ${count(all, "episode")}${isSearching ? ", searching…" : ""}`);
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
  if (explorer.shown.length) box.setAttribute("aria-activedescendant", `row-${explorer.at}`);
  else box.removeAttribute("aria-activedescendant");
}

function rowItem(at) {
  const row = rowAt(explorer.run, explorer.shown[at]);
  const stage = stageOf(row.stage);
  const isSelected = at === explorer.at;
  const item = h(
    "div",
    {
      class: isSelected ? "row is-selected" : "row", role: "option", id: `row-${at}`, "aria-selected": isSelected ? "true" : "false",
      "aria-setsize": explorer.shown.length, "aria-posinset": at + 1, onclick: () => { select(at); read(); },
    },
    h("span", { class: `sign sign-${row.outcome}`, title: OUTCOMES[row.outcome].name, "aria-label": OUTCOMES[row.outcome].name, role: "img" }, OUTCOMES[row.outcome].sign),
    h("span", { class: "row-question" }, cut(row.question.question, 220)),
    h("span", { class: "row-facts" }, h("i", { class: `key tone-${stage.tone}` }), [stage.name, row.stage === "rl" ? `step ${row.step}` : row.question.kind, count(row.searches, "search", "searches"), row.shortAnswer && `“${cut(row.shortAnswer, 60)}”`].filter(Boolean).join(" · ")),
  );
  item.style.top = `${at * ROW}px`;
  return item;
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

function openEpisode(number) {
  const at = explorer.shown.indexOf(number);
  if (at >= 0) select(at);
  else drawDetail(number);
}

function drawDetail(number = explorer.shown[explorer.at]) {
  const detail = find("#detail");
  if (number === undefined) {
    replace(detail, h("p", { class: "empty" }, "No episode matches."));
    return;
  }
  const episode = episodeAt(explorer.run, number);
  const stages = sameQuestion(explorer.run, episode);
  replace(
    detail,
    h("button", { type: "button", class: "back", onclick: backToList }, "← Episodes"),
    questionHead(episode),
    stages.length > 1 ? stageTabs(episode, stages) : null,
    group(explorer.run, episode),
    explorer.isSideBySide && stages.length > 1 ? sideBySide(stages) : single(episode),
  );
  detail.classList.toggle("is-wide", explorer.isSideBySide && stages.length > 1);
  detail.scrollTop = 0;
}

function questionHead(episode) {
  const { question } = episode;
  const names = [question.kind, [question.source, question.id].filter(Boolean).join(" ")].filter(Boolean);
  return h(
    "header",
    { class: "question" },
    h("p", { class: "eyebrow" }, names.join(" · ")),
    h("h2", null, question.question),
    h("p", { class: "golds" }, "Gold: ", question.answers.slice(0, 8).map((answer, i) => [i > 0 && ", ", h("b", null, answer)]), question.answers.length > 8 && ` and ${question.answers.length - 8} more`, question.support.length > 0 && h("span", { class: "support" }, ` on ${cut(question.support.join(", "), 120)}`)),
  );
}

/** One episode per evaluation of the same question, in the order of training. */
function sameQuestion(run, episode) {
  const { columns, stages } = indexOf(run);
  const found = new Map();
  columns.question.forEach((question, number) => {
    const stage = stages[columns.stage[number]];
    if (question === episode.questionNumber && stage.startsWith("eval-") && !found.has(stage)) found.set(stage, number);
  });
  if (found.has(episode.stage)) found.set(episode.stage, episode.number);
  return [...found.values()].sort((a, b) => columns.stage[a] - columns.stage[b]);
}

function stageTabs(episode, numbers) {
  const toggle = () => {
    explorer.isSideBySide = !explorer.isSideBySide;
    drawDetail(episode.number);
  };
  return h(
    "div",
    { class: "stage-tabs", role: "group", "aria-label": "The same question in each stage" },
    numbers.map((number) => {
      const row = rowAt(explorer.run, number);
      const isHere = number === episode.number && !explorer.isSideBySide;
      return h(
        "button",
        { type: "button", class: isHere ? "is-on" : null, "aria-pressed": isHere ? "true" : "false", onclick: () => { explorer.isSideBySide = false; drawDetail(number); } },
        h("i", { class: `key tone-${stageOf(row.stage).tone}` }), stageOf(row.stage).name, h("span", { class: `sign sign-${row.outcome}` }, OUTCOMES[row.outcome].sign),
      );
    }),
    h("button", { type: "button", class: explorer.isSideBySide ? "is-on" : null, "aria-pressed": explorer.isSideBySide ? "true" : "false", onclick: toggle, title: "c" }, "Side by side"),
  );
}

function group(run, episode) {
  if (episode.stage !== "rl") return null;
  const { columns } = indexOf(run);
  const stage = columns.stage[episode.number];
  const members = [];
  columns.question.forEach((question, number) => {
    if (question === episode.questionNumber && columns.stage[number] === stage && columns.step[number] === episode.step) members.push(rowAt(run, number));
  });
  if (members.length < 2) return null;
  return h(
    "div",
    { class: "group", role: "group", "aria-label": "The episodes of this group" },
    h("p", null, `Group of ${members.length} at step ${episode.step}: reward, and advantage`),
    h(
      "div",
      { class: "members" },
      members.map((member) =>
        h(
          "button",
          { type: "button", class: member.number === episode.number ? `member is-on sign-${member.outcome}` : `member sign-${member.outcome}`, "aria-pressed": member.number === episode.number ? "true" : "false", onclick: () => openEpisode(member.number) },
          h("span", { class: "unseen" }, `${OUTCOMES[member.outcome].name}, reward `),
          h("b", null, member.reward === null ? "–" : plain(member.reward)), h("span", { class: "unseen" }, " advantage "), h("small", null, member.advantage === null ? "failed" : signed(member.advantage)),
        ),
      ),
    ),
  );
}

function signed(value) {
  return isNumber(value) ? `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}` : "–";
}

function answerLine(episode) {
  const scores = { ...episode.parts, ...episode.scores };
  return h(
    "p",
    { class: "answer-line" },
    outcomeBadge(episode.outcome),
    episode.answer === null ? h("span", { class: "no-answer" }, "gave no answer") : h("b", { class: "answer" }, cut(episode.answer, 400) || "(blank)"),
    Object.entries(scores).map(([name, value]) => h("span", { class: "score" }, `${name} ${plain(value, 2)}`)),
    isNumber(episode.reward) && h("span", { class: "score" }, `reward ${plain(episode.reward)}`),
    isNumber(episode.advantage) && h("span", { class: "score" }, `advantage ${signed(episode.advantage)}`),
  );
}

function single(episode) {
  return h("article", { class: "episode" }, h("p", { class: "episode-stage" }, h("i", { class: `key tone-${stageOf(episode.stage).tone}` }), stageOf(episode.stage).long), answerLine(episode), conversation(episode));
}

function sideBySide(numbers) {
  return h("div", { class: "columns", tabindex: 0, role: "group", "aria-label": "Stages side by side" }, numbers.map((number) => single(episodeAt(explorer.run, number))));
}

function explorerKey(event) {
  const words = find("#words");
  if (event.target === words) {
    if (event.key === "Escape") {
      if (words.value) { words.value = ""; change(explorer.run, { words: "" }); }
      else words.blur();
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
  else if (event.key === "/") words.focus();
  else if (event.key === "Enter" && !["BUTTON", "SUMMARY", "A"].includes(event.target.tagName)) read();
  else if (event.key === "Escape") backToList();
  else if (event.key === "c") { explorer.isSideBySide = !explorer.isSideBySide; drawDetail(); }
  else return false;
  return true;
}
