"use strict";
/* Curves of metrics: which charts there are, and how one is drawn. */
const Curves = (() => {
  const { el, put } = Dom;
  const HEIGHT = 190;
  const MARKS = { death: "--dead", restart: "--restarting", plan_change: "--accent", resume: "--accent", checkpoint: "--faint" };
  const HUES = 8;
  const EVALUATION = "eval/return_mean";
  const ABOUT_EVALUATION = ["eval/return_std", "eval/update"];

  /** The charts for the metrics that runs have: {title, metrics}, the important ones first. */
  function charts(names) {
    const has = new Set(names);
    const main = [
      { title: "Return", metrics: ["train_return_mean", EVALUATION], wide: true },
      { title: "Steps per second", metrics: ["steps_per_second"] },
      { title: "Lag in updates", metrics: ["lag/mean", "lag/max"] },
    ];
    const losses = names.filter((n) => n.startsWith("learn/"));
    losses.sort((a, b) => rank(a) - rank(b));
    main.push(...losses.map((n) => ({ title: Format.metric(n), metrics: [n] })));
    main.push(...names.filter((n) => n.startsWith("info/")).map((n) => ({ title: Format.metric(n), metrics: [n] })));
    const taken = new Set([...main.flatMap((c) => c.metrics), ...ABOUT_EVALUATION, "episodes"]);
    const rest = names.filter((n) => !taken.has(n)).map((n) => ({ title: n, metrics: [n] }));
    const there = main.map((c) => ({ ...c, metrics: c.metrics.filter((m) => has.has(m)) })).filter((c) => c.metrics.length);
    return { main: there, rest };
  }

  const ORDER = ["loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "td_error", "q_mean", "gradient_norm"];
  const rank = (name) => (ORDER.indexOf(name.slice("learn/".length)) + ORDER.length + 1) % (ORDER.length + 1);

  /** One chart. `show` takes curves, marks, and the name of the x axis. */
  function chart({ title, wide }, { runs, sync }) {
    const values = el("div", { class: "values" });
    const holder = el("div", { class: "plot" });
    const note = el("p", { class: "empty" }, "nothing yet");
    const node = el("figure", { class: wide ? "chart wide" : "chart", "aria-label": title },
      el("figcaption", {}, el("h3", {}, title), values), holder, note);
    let [plot, shown, marks, by, zoomed] = [null, [], [], "env_steps", false];

    function show(curves, newMarks, newBy) {
      const moved = newBy !== by;
      [shown, marks, by] = [curves.filter((c) => c.x.length).map(merged), newMarks, newBy];
      note.hidden = shown.length > 0;
      holder.hidden = !shown.length;
      if (!shown.length) return;
      const { data, series, bands } = uplotSeries(shown, runs);
      const same = plot && !moved && plot.series.length === series.length;
      if (same) {
        const { min, max } = plot.scales.x;
        plot.setData(data, !zoomed);
        if (zoomed) plot.setScale("x", { min, max });
      } else {
        draw(data, series, bands);
      }
      showValues();
    }

    function draw(data, series, bands) {
      plot?.destroy();
      zoomed = false;
      const width = holder.clientWidth || 400;
      plot = new uPlot({ width, height: HEIGHT, series, bands, legend: { show: false }, padding: [8, 18, 0, 0],
        axes: axes(by), scales: { x: { time: false }, y: { range } }, cursor: cursorOf(sync), select: { show: true },
        hooks: { draw: [drawMarks], setCursor: [showValues], setScale: [noteZoom] } }, data, holder);
    }

    function noteZoom(u, key) {
      if (key !== "x" || !u.data[0].length) return;
      const [first, last] = [u.data[0][0], u.data[0].at(-1)];
      zoomed = u.scales.x.min > first + 1e-9 || u.scales.x.max < last - 1e-9;
    }

    /** The values under the cursor, or the newest. */
    function showValues() {
      const chips = shown.slice(0, 12).map((curve, k) => {
        const index = plot?.cursor.idxs?.[1 + 3 * k];
        const row = plot?.data[1 + 3 * k];
        const value = plot?.cursor.left >= 0 && row ? row[index] : curve.y.at(-1);
        const bounds = curve.low && !(plot?.cursor.left >= 0) ? spread(curve) : "";
        const words = runs.length > 1 ? "" : metricsOf(shown).length > 1 ? ` ${Format.metric(curve.metric)}` : "";
        return el("span", { class: "value", title: `${curve.run} ${curve.metric}` },
          runs.length > 1 || words ? swatch(hueOf(curve, shown, runs), dashed(curve, shown, runs)) : null, `${words} `,
          el("b", {}, Format.number(value)), bounds ? el("span", { class: "soft" }, bounds) : null);
      });
      const at = plot?.cursor.left >= 0 ? el("span", { class: "value soft" }, xWords()) : null;
      put(values, at, ...chips);
    }

    function xWords() {
      const x = plot.posToVal(plot.cursor.left, "x");
      const near = marks.filter((m) => Object.hasOwn(MARKS, m.kind) && Format.known(m[by]))
        .find((m) => Math.abs(plot.valToPos(m[by], "x") - plot.cursor.left) < 6);
      const at = by === "seconds" ? Format.duration(x) : Format.short(Math.round(x));
      return near ? `${at}: ${near.text || near.kind}` : at;
    }

    function drawMarks(u) {
      const ratio = devicePixelRatio;
      for (const m of marks) {
        if (!Object.hasOwn(MARKS, m.kind) || !Format.known(m[by]) || (m.kind === "checkpoint" && !wide)) continue;
        const x = u.valToPos(m[by], "x", true);
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
        u.ctx.save();
        u.ctx.strokeStyle = Dom.colour(MARKS[m.kind]);
        u.ctx.lineWidth = ratio;
        u.ctx.setLineDash(m.kind === "checkpoint" ? [2 * ratio, 4 * ratio] : [5 * ratio, 3 * ratio]);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
        u.ctx.restore();
      }
    }

    function redraw() {
      if (!shown.length) return;
      const { data, series, bands } = uplotSeries(shown, runs);
      draw(data, series, bands);
      showValues();
    }
    new ResizeObserver(() => plot && holder.clientWidth && plot.setSize({ width: holder.clientWidth, height: HEIGHT })).observe(holder);
    return { node, show, redraw, isZoomed: () => zoomed };
  }

  /** Evaluations once each, though rows repeat the newest, and how far its episodes lie apart. */
  function evaluations(curve, all) {
    const of = (metric) => all.find((c) => c.run === curve.run && c.metric === metric);
    const [std, update] = ABOUT_EVALUATION.map(of);
    if (curve.metric !== EVALUATION || curve.runs > 1 || [std, update].some((c) => c?.x.length !== curve.x.length)) return curve;
    const first = curve.x.map((_, i) => i).filter((i) => !i || update.y[i] !== update.y[i - 1]);
    const at = (f) => first.map(f);
    return { ...curve, x: at((i) => curve.x[i]), y: at((i) => curve.y[i]), low: at((i) => curve.y[i] - std.y[i]),
      high: at((i) => curve.y[i] + std.y[i]), spread: true };
  }

  /** Points at the same x as one: their mean, and a band around all of them. */
  function merged(curve) {
    if (!curve.x.some((x, i) => i && x === curve.x[i - 1])) return curve;
    const { x, y, low = y, high = y } = curve;
    const found = { ...curve, x: [], y: [], low: [], high: [] };
    for (let i = 0, end = 0; i < x.length; i = end) {
      while (end < x.length && x[end] === x[i]) end++;
      found.x.push(x[i]);
      found.y.push(y.slice(i, end).reduce((sum, one) => sum + one, 0) / (end - i));
      found.low.push(Math.min(...low.slice(i, end)));
      found.high.push(Math.max(...high.slice(i, end)));
    }
    return found;
  }

  /** Each curve as three series: its line, and the two edges of its band. */
  function uplotSeries(curves, runs) {
    const tables = curves.flatMap((c) => [[c.x, c.y], [c.x, c.low ?? c.y], [c.x, c.high ?? c.y]]);
    const data = uPlot.join(tables);
    const series = [{}];
    const bands = [];
    curves.forEach((curve, k) => {
      const hue = Dom.colour(hueOf(curve, curves, runs));
      const line = { stroke: hue, width: 1.6, points: { show: curve.x.length < 2, size: 5 }, spanGaps: true };
      if (curve.metric === EVALUATION) Object.assign(line, { points: { show: true, size: 4, fill: hue } });
      if (dashed(curve, curves, runs)) line.dash = [5, 3];
      const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      series.push({ label: `${curve.run} ${curve.metric}`, ...line }, edge, { ...edge });
      const soft = hue.replace(/^rgb\(/, "rgba(").replace(/\)$/, ", 0.16)");
      if (curve.low) bands.push({ series: [3 * k + 3, 3 * k + 2], fill: soft });
    });
    return { data, series, bands };
  }

  const metricsOf = (curves) => [...new Set(curves.map((c) => c.metric))];

  /** Where there are several runs each has a colour; where there is one its metrics have. */
  function hueOf(curve, curves, runs) {
    const place = runs.length > 1 ? runs.indexOf(curve.run) : metricsOf(curves).indexOf(curve.metric);
    return `--curve${Math.max(0, place) % HUES}`;
  }
  const dashed = (curve, curves, runs) => runs.length > 1 && metricsOf(curves).indexOf(curve.metric) > 0;

  function spread(curve) {
    if (curve.spread) return ` ± ${Format.number((curve.high.at(-1) - curve.low.at(-1)) / 2)}`;
    return curve.runs > 1 ? ` ${Format.number(curve.low.at(-1))} to ${Format.number(curve.high.at(-1))}` : "";
  }

  function swatch(hue, isDashed) {
    const node = el("span", { class: isDashed ? "swatch dashed" : "swatch", "aria-hidden": "true" });
    node.style.setProperty("--hue", `var(${hue})`);
    return node;
  }

  /** Which colour is whose. */
  function legend(curves, runs) {
    const shown = runs.map((run) => curves.find((c) => c.run === run && c.x.length)).filter(Boolean);
    return shown.map((c) => el("span", { class: "key" }, swatch(hueOf(c, curves, runs), false),
      ` ${c.run}${c.runs > 1 ? ` and its other seeds (${c.runs} runs, interquartile mean, 95 % interval)` : ""}`));
  }

  /** What the vertical axis covers; of values that are all the same, a little around them. */
  function range(u, low, high) {
    if (low !== high || low === null) return uPlot.rangeNum(low, high, 0.1, true);
    return low === 0 ? [0, 1] : [low - Math.abs(low) / 10, low + Math.abs(low) / 10];
  }

  function axes(by) {
    const common = { stroke: Dom.colour("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: Dom.colour("--grid"), width: 1 } };
    const words = (u, splits) => splits.map((x) => (by === "seconds" ? Format.duration(x) : Format.tick(x)));
    return [
      { ...common, values: words, grid: { show: false }, size: 28, space: 70 },
      { ...common, values: (u, splits) => splits.map((x) => Format.tick(Number(x.toPrecision(12)))), size: 52, space: 36 },
    ];
  }

  /** A cursor that all charts of a page share; a series without a value there shows its nearest one. */
  function cursorOf(sync) {
    const nearest = (u, k, index) => {
      const row = u.data[k];
      for (let d = 0; d < row.length; d++) {
        if (row[index - d] !== null && row[index - d] !== undefined) return index - d;
        if (row[index + d] !== null && row[index + d] !== undefined) return index + d;
      }
      return index;
    };
    return { y: false, points: { size: 6 }, drag: { x: true, y: false, dist: 8 }, dataIdx: nearest,
      sync: { key: sync, scales: ["x", null] } };
  }

  /** Charts of some runs: asks for curves, shows them, and does so again when told that there are new rows. */
  function board({ runs, merge = false, report }) {
    const sync = `sync-${Math.random()}`;
    const key = el("div", { class: "keys left" });
    const main = el("div", { class: "charts" });
    const rest = el("div", { class: "charts" });
    const filter = el("input", { type: "search", placeholder: "Filter metrics", "aria-label": "Filter metrics", input: showRest });
    const more = el("details", { class: "more" }, el("summary", {}, "All other metrics"), filter, rest);
    more.addEventListener("toggle", refresh);
    let [by, seeds, marks, busy, again, closed] = ["env_steps", merge, [], false, false, false];
    let [first, other] = [[], []];

    function setMetrics(names) {
      const wanted = charts(names);
      first = kept(first, wanted.main);
      other = kept(other, wanted.rest);
      if (main.childElementCount !== first.length) put(main, ...first.map((c) => c.view.node));
      if (rest.childElementCount !== other.length) put(rest, ...other.map((c) => c.view.node));
      more.hidden = !other.length;
      return refresh();
    }

    /** Charts that there are already stay; those of new metrics are made. */
    function kept(old, wanted) {
      return wanted.map((c) => old.find((o) => o.title === c.title && o.metrics.join() === c.metrics.join())
        ?? { ...c, view: chart(c, { runs, sync }) });
    }

    function showRest() {
      for (const c of other) c.view.node.hidden = !c.title.includes(filter.value.trim().toLowerCase());
    }

    /** The curves of a chart, in the order of its metrics and of the runs. */
    const ofChart = (c, curves) =>
      c.metrics.flatMap((metric) => runs.flatMap((run) => curves.filter((x) => x.metric === metric && x.run === run)));

    async function refresh() {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      const shown = [...first, ...(more.open ? other : [])];
      try {
        const metric = shown.flatMap((c) => c.metrics);
        if (metric.length && !closed) {
          if (metric.includes(EVALUATION)) metric.push(...ABOUT_EVALUATION);
          const answer = await Answers.ask("/api/curves", { run: runs, metric, by, points: 1000, merge: seeds ? 1 : 0 });
          if (runs.length > 1) put(key, ...legend(answer.curves, runs));
          const curves = answer.curves.map((c) => evaluations(c, answer.curves));
          if (!closed) shown.forEach((c) => c.view.show(ofChart(c, curves), marks, answer.by));
        }
      } catch (error) {
        report(error);
      }
      busy = false;
      if (again && !closed) {
        again = false;
        refresh();
      }
    }

    const axis = Dom.choice("Horizontal axis", [["env_steps", "steps"], ["seconds", "seconds"], ["update", "updates"]], by, (x) => {
      by = x;
      refresh();
    });
    const together = Dom.choice("Seeds", [[true, "merge seeds"], [false, "each run"]], seeds, (x) => {
      seeds = x;
      refresh();
    });
    const redraw = () => [...first, ...other].forEach((c) => c.view.redraw());
    Theme.listeners.add(redraw);
    return {
      node: [key, main, more], tools: runs.length > 1 || merge ? [together, axis] : [axis], setMetrics, refresh,
      setMarks: (news) => (marks = news),
      close() {
        closed = true;
        Theme.listeners.delete(redraw);
      },
    };
  }

  return { board };
})();
