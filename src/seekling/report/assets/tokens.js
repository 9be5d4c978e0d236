// Tokens in colour: how likely the policy held each one it sampled, or which ones are trained.

const PAINTS = [["", "Plain"], ["probability", "Probability"], ["mask", "Trained"]];
const LEVELS = [0.9, 0.7, 0.5, 0.3, 0.1, 0];
const paint = { how: "" };

/** The sampled tokens of a turn as {text, p}; null where they were not recorded. */
function tokensOf(turn) {
  if (!turn.lengths) return null;
  // Lengths count characters, and a JavaScript string counts halves of some.
  const characters = Array.from(turn.action);
  let from = 0;
  return turn.lengths.map((length, at) => {
    const text = characters.slice(from, from + length).join("");
    from += length;
    return { text, p: Math.exp(turn.logprobs[at] / 100) };
  });
}

/** How an action is drawn in the present colours; null for the plain way. */
function painter(turn) {
  const tokens = paint.how === "probability" ? tokensOf(turn) : null;
  return tokens && ((shown) => tokenParts(tokens, shown.length));
}

function tokenParts(tokens, length) {
  const parts = [];
  let used = 0;
  for (const { text, p } of tokens) {
    const piece = text.slice(0, length - used);
    if (text && !piece) break; // the rest is not shown yet
    used += piece.length;
    const level = LEVELS.findIndex((least) => p >= least);
    const title = `${JSON.stringify(text)}: ${percent(p, p < 0.1 ? 1 : 0)}`;
    if (piece) parts.push(h("span", { class: `token p${level}`, title }, piece));
    else if (!text && level > 0) parts.push(h("span", { class: `token p${level}`, title: `unseen token: ${percent(p, 0)}` }, "·"));
  }
  return parts;
}

/** The choice of colours, and what the present ones mean for this episode. */
function paintBar(episode, redraw) {
  return h(
    "div",
    { class: "paint" },
    h(
      "div",
      { class: "segments", role: "group", "aria-label": "Colour of tokens" },
      PAINTS.map(([how, name]) => h("button", { type: "button", class: how === paint.how ? "is-on" : null, "aria-pressed": how === paint.how ? "true" : "false", onclick: () => { paint.how = how; redraw(); } }, name)),
    ),
    paint.how === "probability" && probabilityLegend(episode),
    paint.how === "mask" && h("p", { class: "legend" }, maskWords(episode)),
  );
}

function probabilityLegend(episode) {
  const tokens = episode.turns.flatMap((turn) => tokensOf(turn) || []);
  if (!tokens.length) return h("p", { class: "legend" }, "This episode was recorded without the probabilities of its tokens.");
  const rarest = [...tokens].filter(({ text }) => text.trim()).sort((a, b) => a.p - b.p).slice(0, 3).filter(({ p }) => p < 0.9);
  return h(
    "p",
    { class: "legend" },
    LEVELS.map((least, level) => [h("span", { class: `token p${level}` }, level === 0 ? "≥ 90 %" : level === LEVELS.length - 1 ? "< 10 %" : `≥ ${100 * least} %`), " "]),
    rarest.length > 0 && ["least likely: ", rarest.map(({ text, p }, at) => [at > 0 && ", ", h("code", null, text.trim()), ` ${percent(p, p < 0.1 ? 1 : 0)}`])],
  );
}

/** Which class colours the trained tokens of an episode: "" where nothing of it is trained. */
function maskClass({ stage, advantage }) {
  if (stage === "expert" || stage === "sft") return "mask-up";
  if (stage !== "rl" || !advantage) return "mask-none";
  return advantage > 0 ? "mask-up" : "mask-down";
}

function maskWords({ stage, advantage }) {
  const context = " The prompt and what came back are context and never trained.";
  if (stage === "expert" || stage === "sft") return `SFT trains what the expert wrote.${context}`;
  if (stage !== "rl") return "An evaluation trains nothing. Framed is what the policy sampled.";
  if (advantage === null) return "This episode has no advantage: it was left out of the batch.";
  if (advantage === 0) return "Its advantage is 0, as where all of a group scored the same: nothing of it was trained.";
  return `Its advantage of ${signed(advantage)} made these tokens ${advantage > 0 ? "likelier" : "less likely"}.${context}`;
}
