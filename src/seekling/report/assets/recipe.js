// The resolved recipe with what differs from the defaults set off, and the record of the run as it was written.

function recipeView(run) {
  const data = REPORT.runs[run];
  const sections = sectionsOf(data.recipe, REPORT.defaults);
  const view = h(
    "div",
    { class: "page recipe" },
    h("h1", { class: "unseen" }, "Recipe"),
    problems(data),
    sections.length > 0
      ? [
          h("div", { class: "recipe-head" }, h("h2", null, "Resolved recipe"), h("label", null, h("input", { type: "checkbox", onchange: (event) => view.classList.toggle("only-changed", event.target.checked) }), " only what differs from the defaults")),
          h("div", { class: "sections" }, sections.map(([name, entries, defaults]) => settingsPanel(name || "run", entries, defaults))),
        ]
      : data.recipe_toml && h("section", { class: "panel" }, h("h2", null, "recipe.toml as it is"), h("pre", null, data.recipe_toml)),
    Object.keys(data.record).length > 0 && h("section", { class: "panel record" }, h("h2", null, "Record of the run"), tree(data.record)),
  );
  return view;
}

/** The sections of a recipe as its file has them, rl and then rl.loss: name, settings, and their defaults. */
function sectionsOf(values, defaults, name = "") {
  const entries = Object.entries(values);
  const own = entries.filter(([, value]) => !isObject(value));
  const inner = entries.filter(([, value]) => isObject(value));
  return [
    ...(own.length ? [[name, own, defaults]] : []),
    ...inner.flatMap(([key, value]) => sectionsOf(value, isObject(defaults[key]) ? defaults[key] : {}, name ? `${name}.${key}` : key)),
  ];
}

function settingsPanel(name, entries, defaults) {
  const isChanged = ([key, value]) => JSON.stringify(defaults[key]) !== JSON.stringify(value);
  return h(
    "section",
    { class: entries.some(isChanged) ? "panel settings" : "panel settings unchanged" },
    h("h3", null, name),
    h(
      "dl",
      null,
      entries.map((entry) =>
        h("div", { class: isChanged(entry) ? "changed" : "unchanged", title: isChanged(entry) ? `default: ${settingText(defaults[entry[0]])}` : null }, h("dt", null, entry[0]), h("dd", null, settingText(entry[1]))),
      ),
    ),
  );
}

function settingText(value) {
  if (value === undefined || value === null) return "–";
  if (typeof value === "string") return value === "" ? "–" : value;
  if (Array.isArray(value)) return value.length ? value.map(settingText).join(", ") : "none";
  if (typeof value === "number") return Math.abs(value) < 1e-3 ? plain(value) : value.toLocaleString("en", { maximumSignificantDigits: 15 });
  return isObject(value) ? JSON.stringify(value) : String(value);
}

function tree(value) {
  return h(
    "dl",
    { class: "tree" },
    Object.entries(value).map(([name, part]) =>
      h("div", { class: isObject(part) ? "branch" : null }, h("dt", null, name.replace(/_/g, " ")), h("dd", null, isObject(part) ? tree(part) : typeof part === "number" ? String(part) : settingText(part))),
    ),
  );
}
