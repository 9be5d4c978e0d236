// Where the time of a run goes: its stages, its steps, its episodes.

function timings(data, stages) {
  const spread = stages.filter(([, { time }]) => Object.values(time).some(Array.isArray));
  const bar = timeBar(data);
  const curves = data.charts.time;
  if (!bar && !curves.length && !spread.length) return null;
  return [
    h("section", { class: "panel" }, bar || h("h2", null, "Where the time goes"), spread.length > 0 && spreadTable(spread)),
    curves.length > 0 && chartGrid(curves),
  ];
}

function timeBar(data) {
  const times = Object.entries(data.seconds);
  const total = times.reduce((sum, [, value]) => sum + value, 0);
  if (!total) return null;
  let from = 0;
  const parts = times.map(([name, value]) => {
    const width = (1000 * value) / total;
    from += width;
    return s("rect", { class: `bar-fill tone-${stageTone(name)}`, x: from - width, width: Math.max(0, width - 3), height: 14, rx: 2 });
  });
  return [
    h("h2", null, `Where the time went: ${duration(total)}`),
    s("svg", { viewBox: "0 0 1000 14", class: "time-bar", "aria-hidden": "true", preserveAspectRatio: "none" }, parts),
    h("ul", { class: "time-list" }, times.map(([name, value]) => h("li", null, h("i", { class: `key tone-${stageTone(name)}` }), `${name} `, h("b", null, duration(value)), ` ${percent(value / total, 0)}`))),
  ];
}

function stageTone(name) {
  return Object.hasOwn(STAGES, name) ? STAGES[name].tone : "other";
}

function spreadTable(stages) {
  const columns = [["seconds", "Seconds per episode"], ["turns", "Turns"], ["action_tokens", "Tokens written"], ["observation_tokens", "Tokens read"]];
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Time and tokens by stage" },
    h(
      "table",
      { class: "spread" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Median (10th to 90th percentile)"), columns.map(([, name]) => h("th", { scope: "col" }, name)))),
      h("tbody", null, stages.map(([stage, { time }]) => h("tr", null, h("th", { scope: "row" }, stageName(stage)), columns.map(([name]) => h("td", null, spreadCell(time[name])))))),
    ),
  );
}

function spreadCell(values) {
  if (!Array.isArray(values)) return "–";
  const [, low, middle, high, most] = values;
  return [h("b", null, plain(middle)), h("small", { title: `at most ${plain(most)}` }, ` ${plain(low)} – ${plain(high)}`)];
}
