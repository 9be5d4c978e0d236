// Inline SVG: line charts with axes and readable values, and the little interval plots of the tables.

const CHART = { width: 380, height: 210, left: 46, right: 12, top: 10, bottom: 36 };

/** Round values that divide [low, high] into about `wanted` parts. */
function ticks(low, high, wanted) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= wanted + 0.001);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

/** A trailing mean that makes a long noisy curve readable; short ones are shown as they are. */
function smooth(values) {
  const keep = 1 - 1 / Math.max(1, values.length / 20);
  let mean = null;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    mean = mean === null ? value : keep * mean + (1 - keep) * value;
    return mean;
  });
}

/** A figure with a title, a line per series and a readout that follows the pointer or the arrow keys.
 *  spec: a chart as Python made it; cursors: a set shared by charts to be read together. */
function lineChart(spec, cursors) {
  const series = spec.lines.filter((one) => one.ys.some(isNumber));
  const xs = [...new Set(series.flatMap((one) => one.xs))].sort((a, b) => a - b);
  const values = series.flatMap((one) => one.ys.filter(isNumber));
  let low = Math.min(...values, ...(spec.is_from_zero ? [0] : []));
  let high = Math.max(...values, ...(isNumber(spec.top) ? [spec.top] : []));
  if (high === low) [low, high] = low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high) || 1];
  if (!spec.is_from_zero) [low, high] = [low - 0.05 * (high - low), high + 0.05 * (high - low)];
  const [one, two] = ticks(low, high, 4);
  if (spec.is_from_zero && two > one) high = Math.ceil(high / (two - one) - 1e-9) * (two - one);
  const { width, height, left, right, top, bottom } = CHART;
  const first = xs[0];
  const last = xs[xs.length - 1];
  const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const cursor = s("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const dots = series.map((one) => s("circle", { class: `dot tone-${one.tone}`, r: 3.5, visibility: "hidden" }));
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", tabindex: 0, "aria-label": describe(spec, series) },
    axes({ ...spec, low, high, first, last }, x, y),
    isNumber(spec.changes_at) && s("line", { class: "change", x1: x(spec.changes_at), x2: x(spec.changes_at), y1: top, y2: height - bottom }),
    series.map((one) => curve(one, x, y)),
    cursor,
    dots,
  );
  const at = (one, step) => one.ys[one.xs.indexOf(step)];
  const show = (step) => {
    const isOff = step === null || !xs.includes(step);
    cursor.setAttribute("visibility", isOff ? "hidden" : "visible");
    if (!isOff) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
    series.forEach((one, i) => {
      const value = isOff ? null : at(one, step);
      dots[i].setAttribute("visibility", isNumber(value) ? "visible" : "hidden");
      if (isNumber(value)) fill(dots[i], { cx: x(step), cy: y(value) }, []);
    });
    replace(readout, legend(series, isOff ? null : step, isOff ? (one) => lastOf(one.ys) : (one) => at(one, step)));
  };
  wire(drawing, xs, x, (step) => cursors.forEach((one) => one(step)));
  cursors.add(show);
  show(null);
  return h("figure", { class: "panel chart-panel" }, h("figcaption", null, h("h3", null, spec.title), readout), drawing);
}

function wire(drawing, xs, x, move) {
  let current = null;
  const set = (step) => {
    current = step;
    move(step);
  };
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect();
    const pointer = ((event.clientX - box.left) / box.width) * CHART.width;
    return xs.reduce((best, step) => (Math.abs(x(step) - pointer) < Math.abs(x(best) - pointer) ? step : best), xs[0]);
  };
  drawing.addEventListener("pointermove", (event) => set(nearest(event)));
  drawing.addEventListener("pointerdown", (event) => set(nearest(event)));
  drawing.addEventListener("pointerleave", () => set(null));
  drawing.addEventListener("blur", () => set(null));
  drawing.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const from = current === null ? (move > 0 ? -1 : xs.length) : xs.indexOf(current);
    set(xs[Math.min(xs.length - 1, Math.max(0, from + move))]);
  });
}

function legend(series, step, valueOf) {
  return [
    h("span", { class: "readout-step" }, step === null ? "last" : `step ${plain(step)}`),
    series.map((one) =>
      h("span", { class: "readout-value" }, h("i", { class: `key tone-${one.tone}` }), `${one.name} `, h("b", null, plain(valueOf(one)))),
    ),
  ];
}

function lastOf(values) {
  return values.filter(isNumber).at(-1);
}

function describe(spec, series) {
  const parts = series.map((one) => {
    const values = one.ys.filter(isNumber);
    return `${one.name} goes from ${plain(values[0])} to ${plain(values[values.length - 1])}`;
  });
  return `${spec.title}: ${parts.join("; ")}. Arrow keys read the values.`;
}

function axes(spec, x, y) {
  const { width, height, left, right, bottom } = CHART;
  const steps = ticks(spec.first, spec.last, 5).filter(Number.isInteger);
  return [
    ticks(spec.low, spec.high, 4).map((value) => [
      s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      s("text", { class: "tick", x: left - 6, y: y(value) + 3.5, "text-anchor": "end" }, plain(value)),
    ]),
    steps.map((step) => s("text", { class: "tick", x: x(step), y: height - bottom + 15, "text-anchor": "middle" }, plain(step))),
    s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    s("text", { class: "label", x: width - right, y: height - 4, "text-anchor": "end" }, spec.x_label),
    s("text", { class: "label", x: 2, y: height - 4 }, `↑ ${spec.y_label}`),
  ];
}

function curve(one, x, y) {
  const path = (values) => {
    let text = "";
    let isDown = false;
    values.forEach((value, i) => {
      if (isNumber(value)) text += `${isDown ? "L" : "M"}${x(one.xs[i]).toFixed(1)} ${y(value).toFixed(1)}`;
      isDown = isNumber(value);
    });
    return text;
  };
  const isLong = one.ys.length > 60;
  const points = one.ys.length > 30 ? [] : one.ys.map((value, i) => isNumber(value) && s("circle", { class: `point tone-${one.tone}`, cx: x(one.xs[i]), cy: y(value), r: 1.8 }));
  return [
    isLong && s("path", { class: `curve faint tone-${one.tone}`, d: path(one.ys) }),
    s("path", { class: `curve tone-${one.tone}`, d: path(isLong ? smooth(one.ys) : one.ys) }),
    points,
  ];
}

/** A dot with its interval on a fixed scale; ends and value in the same units as `from` and `to`. */
function intervalPlot({ value, low, high, from, to, tone, label }) {
  const x = (at) => 4 + ((Math.min(to, Math.max(from, at)) - from) / (to - from)) * 192;
  return s(
    "svg",
    { viewBox: "0 0 200 22", class: "interval", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    s("line", { class: "grid", x1: 4, x2: 196, y1: 11, y2: 11 }),
    from < 0 && s("line", { class: "zero", x1: x(0), x2: x(0), y1: 1, y2: 21 }),
    s("line", { class: `whisker tone-${tone}`, x1: x(low), x2: x(high), y1: 11, y2: 11 }),
    isNumber(value) && s("line", { class: `whisker-dot tone-${tone}`, x1: x(value), x2: x(value), y1: 11, y2: 11 }),
  );
}
