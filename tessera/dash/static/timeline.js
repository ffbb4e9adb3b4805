"use strict";
/* What each replica did, on a canvas, and as shares of the time in a table. Runs write samples: short moments, with gaps. */
const Timeline = (() => {
  const { el, put } = Dom;
  const ROW = 22;
  const LEFT = 150;
  const LEFT_NARROW = 84;
  const TOP = 20;
  const MOST_ROWS = 64;
  const GAP = 0.5;
  const HUES = {
    stepping: "--env", acting: "--act", "stepping+acting": "--both", storing: "--store", learning: "--learn", sending: "--send",
    receiving: "--receive", waiting: "--wait",
  };
  const hueOf = (name) => HUES[name] ?? HUES[name.split("+")[0]] ?? "--other";

  /** The samples: times that spans cover, apart from each other by more than GAP. */
  function momentsOf(spans) {
    const times = spans.replicas.flatMap((r) => r.spans.map((s) => [s[2], s[2] + s[3]])).sort((a, b) => a[0] - b[0]);
    const found = [];
    for (const [begin, end] of times) {
      if (!found.length || begin > found.at(-1)[1] + GAP) found.push([begin, end]);
      else found.at(-1)[1] = Math.max(found.at(-1)[1], end);
    }
    return found;
  }

  function board() {
    const canvas = el("canvas", { role: "img", "aria-label": "Timeline of replicas; the table below says the same" });
    const words = el("p", { class: "values", "aria-hidden": "true" }, " ");
    const when = el("span", { class: "soft when" });
    const key = el("div", { class: "keys" });
    const shares = el("details", { class: "more" }, el("summary", {}, "Shares of the time"), el("div", {}));
    const note = el("p", { class: "empty" }, "Nothing recorded yet.");
    const holder = el("div", { class: "timeline" }, canvas);
    const step = (title, by) => el("button", { type: "button", class: "plain", "aria-label": title, title, click: () => move(by) }, by < 0 ? "‹" : "›");
    const [older, newer] = [step("Earlier", -1), step("Later", 1)];
    let [spans, seconds, moments, bars] = [null, 0.2, [], []];
    let at = null; // where the window begins; null: at the newest moment

    const span = Dom.choice("Seconds shown", [[0.05, "50 ms"], [0.2, "0.2 s"], [1, "1 s"], [0, "all"]], seconds, (x) => {
      seconds = x;
      at = null;
      draw();
    });

    /** Begin and end of what is shown. */
    function range() {
      if (!seconds) return [moments[0][0], moments.at(-1)[1]];
      const begin = at ?? newest()[0];
      return [begin, begin + seconds];
    }

    /** The newest moment of which most replicas have told. */
    function newest() {
      const told = ([from, to]) => spans.replicas.filter((r) => r.spans.some((s) => s[2] <= to && s[2] + s[3] >= from)).length;
      return moments.slice(-4).reduce((best, moment) => (told(moment) >= told(best) ? moment : best));
    }

    /** A window earlier or later; over a gap to the next moment. */
    function move(by) {
      const [begin, end] = range();
      if (by < 0) {
        const before = moments.findLast(([from]) => from < begin - 1e-9);
        if (before) at = Math.max(before[0], Math.min(begin, before[1]) - seconds);
      } else {
        const after = moments.find(([, to]) => to > end + 1e-9);
        at = after ? Math.max(after[0], end) : null;
      }
      draw();
    }

    function draw() {
      moments = spans?.replicas ? momentsOf(spans) : [];
      note.hidden = moments.length > 0;
      holder.hidden = !moments.length;
      if (!moments.length) return;
      const [begin, end] = range();
      older.disabled = !seconds || begin <= moments[0][0] + 1e-9;
      newer.disabled = !seconds || end >= moments.at(-1)[1] - 1e-9;
      put(when, spans.begin ? `${Format.clock(spans.begin + begin)}, ${moments.length} sample${moments.length === 1 ? "" : "s"}` : "");
      paint(begin, end);
      put(key, ...spans.names.map((name) => el("span", { class: "key" }, block(name), ` ${name}`)));
      if (shares.open) put(shares.lastChild, table(spans.replicas.slice(0, MOST_ROWS), begin, end));
    }

    function paint(begin, end) {
      const ratio = devicePixelRatio || 1;
      const width = holder.clientWidth;
      const left = width < 560 ? LEFT_NARROW : LEFT;
      const rows = spans.replicas.slice(0, MOST_ROWS);
      const height = TOP + rows.length * ROW + 6;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      canvas.style.height = `${height}px`;
      const g = canvas.getContext("2d");
      g.scale(ratio, ratio);
      const scale = (width - left - 8) / Math.max(end - begin, 1e-9);
      const hues = spans.names.map((name) => Dom.colour(hueOf(name)));
      bars = [];
      ruler(g, end - begin, left, scale, height);
      g.font = "12px system-ui, sans-serif";
      g.textBaseline = "middle";
      rows.forEach((replica, i) => {
        const y = TOP + i * ROW;
        g.fillStyle = Dom.colour("--ink");
        g.fillText(fitted(g, replica.title, left - 12), 2, y + ROW / 2);
        for (const [name, slot, from, took] of replica.spans) {
          if (from + took < begin || from > end) continue;
          const x = left + (Math.max(from, begin) - begin) * scale;
          const to = left + (Math.min(from + took, end) - begin) * scale;
          g.fillStyle = hues[name] ?? Dom.colour("--other");
          g.fillRect(x, y + 3, Math.max(to - x, 0.6), ROW - 6);
          bars.push([x, to, y, name, slot, took, replica.title]);
        }
      });
    }

    /** Lines at round times from the beginning of the window. */
    function ruler(g, length, left, scale, height) {
      const rough = length / Math.max(2, Math.floor((length * scale) / 90));
      const unit = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999) ?? rough;
      g.font = "11px system-ui, sans-serif";
      g.textBaseline = "top";
      for (let t = 0; t <= length + 1e-9; t += step) {
        const x = left + t * scale;
        g.fillStyle = Dom.colour("--grid");
        g.fillRect(x, TOP - 4, 1, height);
        g.fillStyle = Dom.colour("--soft");
        const text = length < 2 ? `${Math.round(t * 1000)} ms` : `${Number(t.toFixed(2))} s`;
        g.fillText(text, Math.min(x, canvas.clientWidth - g.measureText(text).width), 2);
      }
    }

    /** Of the time shown, how much each replica spent on what. */
    function table(rows, begin, end) {
      const row = (replica) => {
        const sums = spans.names.map(() => 0);
        for (const [name, , from, took] of replica.spans) {
          sums[name] += Math.max(0, Math.min(from + took, end) - Math.max(from, begin));
        }
        return el("tr", {}, el("th", { scope: "row" }, replica.title),
          sums.map((s) => el("td", { class: "number" }, Format.percent(s / Math.max(end - begin, 1e-9)))));
      };
      const heads = ["Replica", ...spans.names].map((n, i) => el("th", { scope: "col", class: i ? "number" : null }, n));
      return el("div", { class: "scroll" },
        el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows.map(row))));
    }

    canvas.addEventListener("pointermove", ({ offsetX: x, offsetY: y }) => {
      const hit = bars.findLast(([from, to, top]) => x >= from - 1 && x <= to + 1 && y >= top && y < top + ROW);
      if (!hit) return put(words, " ");
      const [, , , name, slot, took, title] = hit;
      const length = took < 1 ? `${(1000 * took).toPrecision(3)} ms` : `${took.toFixed(2)} s`;
      return put(words, `${title}: ${[spans.names[name], spans.slots[slot]].filter(Boolean).join(" ")}, ${length}`);
    });
    canvas.addEventListener("pointerleave", () => put(words, " "));
    shares.addEventListener("toggle", draw);
    const observer = new ResizeObserver(draw);
    observer.observe(holder);
    Theme.listeners.add(draw);
    return {
      node: [holder, words, key, shares, note], tools: [when, older, newer, span],
      show(news) {
        if (at !== null && spans && news) at += spans.begin - news.begin; // times count from the oldest span that is kept
        spans = news;
        draw();
      },
      close() {
        observer.disconnect();
        Theme.listeners.delete(draw);
      },
    };
  }

  /** The text, or as much of its end as fits. */
  function fitted(g, text, width) {
    if (g.measureText(text).width <= width) return text;
    let cut = text;
    while (cut && g.measureText(`…${cut}`).width > width) cut = cut.slice(1);
    return `…${cut}`;
  }

  function block(name) {
    const node = el("span", { class: "block", "aria-hidden": "true" });
    node.style.setProperty("--hue", `var(${hueOf(name)})`);
    return node;
  }

  return { board };
})();
