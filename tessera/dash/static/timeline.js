"use strict";
/* What each replica did in the last seconds, on a canvas, and as shares of the time in a table. */
const Timeline = (() => {
  const { el, put } = Dom;
  const ROW = 22;
  const LEFT = 150;
  const LEFT_NARROW = 84;
  const TOP = 20;
  const MOST_ROWS = 64;
  const HUES = {
    stepping: "--env", env: "--env", acting: "--act", act: "--act", storing: "--store", store: "--store",
    learning: "--learn", grad: "--learn", apply: "--learn", sending: "--send", receiving: "--receive", waiting: "--wait",
  };
  const hueOf = (name) => HUES[name] ?? (name.startsWith("wait") ? "--wait" : "--other");

  function board() {
    const canvas = el("canvas", { role: "img", "aria-label": "Timeline of replicas; the table below says the same" });
    const words = el("p", { class: "values", "aria-hidden": "true" }, " ");
    const key = el("div", { class: "keys" });
    const shares = el("details", { class: "more" }, el("summary", {}, "Shares of the time"), el("div", {}));
    const note = el("p", { class: "empty" }, "No spans yet.");
    const holder = el("div", { class: "timeline" }, canvas);
    let [spans, seconds, bars] = [null, 2, []];

    const span = Dom.choice("Seconds shown", [[0.2, "0.2 s"], [1, "1 s"], [2, "2 s"], [10, "10 s"], [0, "all"]], seconds, (x) => {
      seconds = x;
      draw();
    });

    function window_() {
      const end = Math.max(0, ...spans.replicas.flatMap((r) => r.spans.slice(-50).map((s) => s[2] + s[3])));
      return [seconds ? Math.max(0, end - seconds) : 0, end];
    }

    function draw() {
      const there = spans?.replicas?.some((r) => r.spans.length);
      note.hidden = Boolean(there);
      holder.hidden = !there;
      if (!there) return;
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
      const [begin, end] = window_();
      const scale = (width - left - 8) / Math.max(end - begin, 1e-9);
      const hues = spans.names.map((name) => Dom.colour(hueOf(name)));
      bars = [];
      ruler(g, begin, end, left, scale, height);
      g.font = "12px system-ui, sans-serif";
      g.textBaseline = "middle";
      rows.forEach((replica, i) => {
        const y = TOP + i * ROW;
        g.fillStyle = Dom.colour("--ink");
        g.fillText(fitted(g, replica.title, left - 12), 2, y + ROW / 2);
        for (const [name, slot, at, took] of replica.spans) {
          if (at + took < begin || at > end) continue;
          const from = left + (Math.max(at, begin) - begin) * scale;
          const to = left + (Math.min(at + took, end) - begin) * scale;
          g.fillStyle = hues[name] ?? Dom.colour("--other");
          g.fillRect(from, y + 3, Math.max(to - from, 0.5), ROW - 6);
          bars.push([from, to, y, name, slot, took, replica.title]);
        }
      });
      put(key, ...spans.names.map((name) => el("span", { class: "key" }, block(name), ` ${name}`)));
      if (shares.open) put(shares.lastChild, table(rows, begin, end));
    }

    function ruler(g, begin, end, left, scale, height) {
      const rough = (end - begin) / 6;
      const step = [1, 2, 5, 10].map((m) => m * 10 ** Math.floor(Math.log10(rough))).find((s) => s >= rough) ?? rough;
      g.font = "11px system-ui, sans-serif";
      g.textBaseline = "top";
      for (let back = 0; back <= end - begin + 1e-9; back += step) {
        const x = left + (end - back - begin) * scale;
        g.fillStyle = Dom.colour("--grid");
        g.fillRect(x, TOP - 4, 1, height);
        g.fillStyle = Dom.colour("--soft");
        const text = back ? `−${step < 0.1 ? `${Math.round(back * 1000)} ms` : `${Number(back.toFixed(2))} s`}` : "newest";
        const wide = g.measureText(text).width;
        g.fillText(text, Math.min(Math.max(x - wide / 2, left), canvas.clientWidth - wide), 2);
      }
    }

    /** Of the time shown, how much each replica spent on what. */
    function table(rows, begin, end) {
      const names = spans.names;
      const row = (replica) => {
        const sums = names.map(() => 0);
        for (const [name, , at, took] of replica.spans) {
          sums[name] += Math.max(0, Math.min(at + took, end) - Math.max(at, begin));
        }
        return el("tr", {}, el("th", { scope: "row" }, replica.title),
          sums.map((s) => el("td", { class: "number" }, Format.percent(s / Math.max(end - begin, 1e-9)))));
      };
      return el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Replica"), names.map((n) => el("th", { scope: "col" }, n)))),
        el("tbody", {}, rows.map(row))));
    }

    canvas.addEventListener("pointermove", ({ offsetX: x, offsetY: y }) => {
      const hit = bars.findLast(([from, to, top]) => x >= from - 1 && x <= to + 1 && y >= top && y < top + ROW);
      if (!hit) return put(words, " ");
      const [, , , name, slot, took, title] = hit;
      const took_ = took < 1 ? `${(1000 * took).toPrecision(3)} ms` : `${took.toFixed(2)} s`;
      return put(words, `${title}: ${spans.names[name]} ${spans.slots[slot] ?? ""}, ${took_}`);
    });
    canvas.addEventListener("pointerleave", () => put(words, " "));
    shares.addEventListener("toggle", draw);
    const observer = new ResizeObserver(draw);
    observer.observe(holder);
    Theme.listeners.add(draw);
    return {
      node: [holder, words, key, shares, note], tools: [span],
      show(news) {
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
