// The episode beside the list: its question, the same question in other stages, its group, and the conversation.

function openEpisode(number) {
  const at = explorer.shown.indexOf(number);
  if (at >= 0) select(at);
  else drawDetail(number);
}

function drawDetail(number = explorer.shown[explorer.at], isAgain = false) {
  const detail = find("#detail");
  explorer.open = number;
  if (number === undefined) {
    replace(detail, h("p", { class: "empty" }, "No episode matches."));
    return;
  }
  const episode = episodeAt(explorer.run, number);
  const stages = sameQuestion(explorer.run, episode);
  const members = groupOf(explorer.run, episode);
  const beside = stages.includes(number) ? stages : members.length > 1 ? members.map((member) => member.number) : stages;
  const isSideBySide = explorer.isSideBySide && beside.length > 1;
  replace(
    detail,
    h("button", { type: "button", class: "back", onclick: backToList }, "← Episodes"),
    questionHead(episode),
    beside.length > 1 || stages.length > 0 ? stageTabs(episode, stages, beside, isSideBySide) : null,
    group(members, episode),
    part("This episode", () => [paintBar(episode, () => drawDetail(number, true)), isSideBySide ? sideBySide(beside) : single(episode)]),
  );
  detail.classList.toggle("is-wide", isSideBySide);
  if (!isAgain) detail.scrollTop = 0;
}

function nextPaint() {
  const names = PAINTS.map(([how]) => how);
  paint.how = names[(names.indexOf(paint.how) + 1) % names.length];
  drawDetail(explorer.open, true);
}

function questionHead(episode) {
  const { question } = episode;
  const names = [question.kind, [question.source, question.id].filter(Boolean).join(" ")].filter(Boolean);
  const same = indexOf(explorer.run).columns.question.filter((one) => one === episode.questionNumber).length;
  const showAll = () => {
    Object.assign(explorer, NO_FILTER, { question: episode.questionNumber });
    replace(find("#choices"), choices(explorer.run, indexOf(explorer.run)));
    find("#words").value = "";
    refilter(explorer.run, episode.number);
    backToList();
  };
  return h(
    "header",
    { class: "question" },
    h("p", { class: "eyebrow" }, names.join(" · ")),
    h("h2", null, question.question),
    h("p", { class: "golds" }, "Gold: ", question.answers.slice(0, 8).map((answer, i) => [i > 0 && ", ", h("b", null, answer)]), question.answers.length > 8 && ` and ${question.answers.length - 8} more`, question.support.length > 0 && h("span", { class: "support" }, ` on ${cut(question.support.join(", "), 120)}`)),
    same > 1 && explorer.question === null && h("button", { type: "button", class: "same", onclick: showAll }, `All ${same.toLocaleString("en")} episodes of this question`),
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

function stageTabs(episode, numbers, beside, isSideBySide) {
  const toggle = () => {
    explorer.isSideBySide = !explorer.isSideBySide;
    drawDetail(episode.number);
  };
  return h(
    "div",
    { class: "stage-tabs", role: "group", "aria-label": "The same question in each stage" },
    numbers.map((number) => {
      const row = rowAt(explorer.run, number);
      const isHere = number === episode.number && !isSideBySide;
      return h(
        "button",
        { type: "button", class: isHere ? "is-on" : null, "aria-pressed": isHere ? "true" : "false", onclick: () => { explorer.isSideBySide = false; drawDetail(number); } },
        h("i", { class: `key tone-${stageOf(row.stage).tone}` }), stageOf(row.stage).name,
        h("span", { class: `sign sign-${row.outcome}`, "aria-hidden": "true" }, OUTCOMES[row.outcome].sign), h("span", { class: "unseen" }, ` ${OUTCOMES[row.outcome].name}`),
      );
    }),
    beside.length > 1 && h("button", { type: "button", class: isSideBySide ? "is-on side-by-side" : "side-by-side", "aria-pressed": isSideBySide ? "true" : "false", onclick: toggle, title: "c" }, "Side by side"),
  );
}

/** Rows of the episodes that were sampled together and are compared with each other; none outside RL. */
function groupOf(run, episode) {
  if (episode.stage !== "rl") return [];
  const { columns } = indexOf(run);
  const stage = columns.stage[episode.number];
  const members = [];
  columns.question.forEach((question, number) => {
    if (question === episode.questionNumber && columns.stage[number] === stage && columns.step[number] === episode.step) members.push(rowAt(run, number));
  });
  return members;
}

function group(members, episode) {
  if (members.length < 2) return null;
  return h(
    "div",
    { class: "group", role: "group", "aria-label": "The episodes of this group" },
    h("p", null, `Group of ${members.length} at step ${episode.step}: reward, and advantage${members.some((member) => member.advantage === null) ? " (– was not learned from)" : ""}`),
    h(
      "div",
      { class: "members" },
      members.map((member) =>
        h(
          "button",
          { type: "button", class: member.number === episode.number ? `member is-on sign-${member.outcome}` : `member sign-${member.outcome}`, "aria-pressed": member.number === episode.number ? "true" : "false", onclick: () => openEpisode(member.number) },
          h("span", { class: "unseen" }, `${OUTCOMES[member.outcome].name}, reward `),
          h("b", null, member.reward === null ? "–" : plain(member.reward)), h("span", { class: "unseen" }, " advantage "), h("small", null, member.outcome === "failed" ? "failed" : signed(member.advantage)),
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

/** Why it went wrong, and what it does, with the rule behind each name. */
function behaviourLine(episode) {
  if (!episode.cause && !episode.behaviours.length) return null;
  return h(
    "p",
    { class: "behaviours" },
    episode.cause && h("span", { class: "chip chip-bad", title: REPORT.causes[episode.cause] }, spoken(episode.cause)),
    episode.behaviours.map((name) => h("span", { class: "chip", title: REPORT.behaviours[name] }, spoken(name))),
  );
}

function single(episode) {
  return h("article", { class: "episode" }, h("p", { class: "episode-stage" }, h("i", { class: `key tone-${stageOf(episode.stage).tone}` }), stageOf(episode.stage).long), answerLine(episode), behaviourLine(episode), conversation(episode));
}

function sideBySide(numbers) {
  return h("div", { class: "columns", tabindex: 0, role: "group", "aria-label": "Side by side" }, numbers.map((number) => {
    const one = single(episodeAt(explorer.run, number));
    if (number === explorer.open) one.setAttribute("aria-current", "true");
    return one;
  }));
}
