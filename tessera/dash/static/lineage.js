"use strict";
/* A population: a lane for each member, and an arc from lane to lane where one goes on from a copy of another. */
const Lineage = (() => {
  const { el, svg, put } = Dom;
  const [TOP, BOTTOM, RIGHT] = [8, 24, 14];
  const [LEFT, LEFT_NARROW, NARROW] = [72, 40, 560];
  const [LOWEST, HIGHEST, ALL] = [12, 26, 420];
  /** Pixels that an arc needs to the side, at most. */
  const BEND = 16;
  /** Pixels between what is replaced and the copy in its place, at most. */
  const GAP = 6;
  const TICK = 90;
  /** Copies in the table. */
  const MOST_ROWS = 200;
  /** Copies from which on their arcs are pale. */
  const DENSE = 300;
  /** Members of a line of descent that are named. */
  const MOST_NAMED = 8;

  /** Where things are in a picture of so many pixels. */
  function scaleOf(found, width) {
    const left = width < NARROW ? LEFT_NARROW : LEFT;
    const lane = Math.min(HIGHEST, Math.max(LOWEST, ALL / found.seeds.length));
    const lanes = new Map(found.seeds.map((seed, i) => [seed, TOP + (i + 0.5) * lane]));
    const begin = Math.min(...found.lives.map((life) => life.begin));
    const end = Math.max(begin + 1, ...found.lives.map((life) => life.end));
    const perUpdate = (width - left - RIGHT) / (end - begin);
    const exchanges = [...new Set(found.lives.map((life) => life.begin))].sort((a, b) => a - b);
    const closest = Math.min(...exchanges.slice(1).map((update, i) => update - exchanges[i]), end - begin);
    return {
      left, lane, begin, end, perUpdate, bend: Math.max(2, Math.min(BEND, 0.7 * closest * perUpdate)),
      x: (update) => left + (update - begin) * perUpdate, y: (seed) => lanes.get(seed),
      width, height: TOP + found.seeds.length * lane + BOTTOM,
    };
  }

  /** The way from a parent's lane to that of its copy. */
  function arc(at, parent, life) {
    const [x, from, to] = [at.x(life.begin), at.y(parent.seed), at.y(life.seed)];
    return { begin: [x - at.bend, from], path: `C${x} ${from} ${x - at.bend} ${to} ${x} ${to}` };
  }

  /** The lanes that the best member comes through. */
  function descent(at, found) {
    const line = found.descent.map((place) => found.lives[place]);
    if (!line.length) return null;
    let path = `M${at.x(line[0].begin)} ${at.y(line[0].seed)}`;
    for (let i = 1; i < line.length; i++) {
      const { begin, path: way } = arc(at, line[i - 1], line[i]);
      path += `H${Math.max(begin[0], at.x(line[i - 1].begin))}${way}`;
    }
    return `${path}H${at.x(line.at(-1).end)}`;
  }

  const values = (found, life) => found.tuned.map((name, i) => `${name.replaceAll("_", " ")} ${Format.number(life.tuned[i])}`);
  const withReturn = (seed, score) => `seed ${seed}${Format.known(score) ? ` (return ${Format.number(score)})` : ""}`;

  /** What is said of a life, and of the copy that it begins with. */
  function lifeWords(found, life) {
    const score = Format.known(life.score) ? `training return ${Format.number(life.score)}` : "";
    const when = `seed ${life.seed}, updates ${Format.number(life.begin)} to ${Format.number(life.end)}`;
    return [when, score, ...values(found, life), life.is_replaced ? "then replaced by a copy" : ""].filter(Boolean).join("\n");
  }

  function copyWords(found, life) {
    const parent = found.lives[life.parent];
    const who = `${withReturn(life.seed, life.score_before)} goes on from ${withReturn(parent.seed, life.score_of_parent)}`;
    return [`update ${Format.number(life.begin)}: ${who}`, ...values(found, life)].join("\n");
  }

  /** A part of the picture that says something when it is pointed at. */
  const told = (words, ...parts) => svg("g", { class: "told" }, svg("title", {}, words), parts);

  function lifeParts(at, found, life) {
    const y = at.y(life.seed);
    const gap = life.is_replaced ? Math.min(GAP, at.bend / 2) : 0;
    const path = `M${at.x(life.begin)} ${y}H${at.x(life.end) - gap}`;
    return told(lifeWords(found, life), svg("path", { class: "reach", d: path }), svg("path", { class: "life", d: path }));
  }

  function copyParts(at, found, life) {
    const { begin, path } = arc(at, found.lives[life.parent], life);
    const d = `M${begin.join(" ")}${path}`;
    return told(copyWords(found, life), svg("path", { class: "reach", d }), svg("path", { class: "copy", d }),
      svg("circle", { class: "begin", cx: at.x(life.begin), cy: at.y(life.seed), r: 2.6 }));
  }

  /** Round updates below the lanes. */
  function ruler(at) {
    const rough = TICK / at.perUpdate;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999) ?? rough);
    const parts = [];
    for (let u = Math.ceil(at.begin / step) * step; u <= at.end; u += step) {
      const x = at.x(u);
      const anchor = x > at.width - 30 ? "end" : "middle";
      parts.push(svg("path", { class: "rule", d: `M${x} ${TOP}V${at.height - BOTTOM + 4}` }),
        svg("text", { x: anchor === "end" ? at.width - 2 : x, y: at.height - 8, "text-anchor": anchor }, Format.tick(u)));
    }
    return parts;
  }

  function labels(at, found) {
    const word = at.left === LEFT ? "seed " : "";
    return found.seeds.map((seed) => svg("text", { x: at.left - 10, y: at.y(seed) + 4, "text-anchor": "end",
      class: seed === found.best ? "best" : null }, `${word}${seed}`));
  }

  /** What the whole picture says. */
  function summary(found) {
    const copies = found.lives.filter((life) => life.parent !== null).length;
    const before = found.descent.slice(0, -1).map((place) => `seed ${found.lives[place].seed}`);
    const far = before.length > MOST_NAMED ? `by ${before.length} copies from ${before[0]}` : `from ${before.join(", then ")}`;
    const best = found.best === null ? "" : before.length
      ? ` The best member, seed ${found.best}, comes ${far}.`
      : ` The best member, seed ${found.best}, is no copy of another.`;
    return `${found.seeds.length} members, ${copies} ${copies === 1 ? "copy" : "copies"}.${best}`;
  }

  function picture(found, width) {
    const at = scaleOf(found, width);
    const bold = descent(at, found);
    const copies = found.lives.filter((life) => life.parent !== null);
    const look = { class: copies.length > DENSE ? "dense" : null, role: "img", "aria-label": `Lineage: ${summary(found)}` };
    return svg("svg", { ...look, viewBox: `0 0 ${at.width} ${at.height}`, height: at.height },
      ruler(at), labels(at, found), found.lives.map((life) => lifeParts(at, found, life)),
      copies.map((life) => copyParts(at, found, life)),
      bold ? [svg("path", { class: "halo", d: bold }), svg("path", { class: "descent", d: bold })] : []);
  }

  /** The newest copies as a table: all that the arcs say, for those who cannot point at them. */
  function table(found) {
    const copies = found.lives.filter((life) => life.parent !== null).slice(-MOST_ROWS).reverse();
    const heads = ["Update", "Seed", "Its return", "Goes on from", "Return of that", ...found.tuned.map((name) => name.replaceAll("_", " "))];
    const row = (life) => el("tr", {}, [life.begin, life.seed, life.score_before, found.lives[life.parent].seed, life.score_of_parent,
      ...life.tuned].map((x) => el("td", { class: "number" }, Format.number(x))));
    return el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col", class: "number" }, h)))), el("tbody", {}, copies.map(row))));
  }

  function notes(found) {
    const lines = found.damaged === 1 ? "1 line" : `${Format.number(found.damaged)} lines`;
    return [
      found.lives.length ? summary(found) : "",
      found.left_out ? `${Format.number(found.left_out)} more members are not shown.` : "",
      found.is_cut ? "Only the newest exchanges are shown." : "",
      found.damaged ? `${lines} of lineage.jsonl cannot be read, and what they say is missing here.` : "",
    ].filter(Boolean).join(" ");
  }

  /** Where the picture goes. */
  function board() {
    const holder = el("div", { class: "lineage" });
    const words = el("p", { class: "values told-words", "aria-hidden": "true" }, " ");
    const note = el("p", { class: "soft" });
    const listed = el("details", { class: "more" }, el("summary", {}, "Copies"), el("div", {}));
    let [found, shown, wide] = [null, "", 0];

    function draw() {
      if (!found?.lives.length || !wide) return put(holder);
      return put(holder, picture(found, wide));
    }

    function list() {
      listed.hidden = !found?.lives.some((life) => life.parent !== null);
      if (!listed.hidden && listed.open) put(listed.lastChild, table(found));
    }

    holder.addEventListener("pointerover", ({ target }) => {
      const part = target.closest(".told");
      put(words, part ? part.firstChild.textContent.replaceAll("\n", " · ") : " ");
    });
    holder.addEventListener("pointerleave", () => put(words, " "));
    listed.addEventListener("toggle", list);
    const observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width === wide) return;
      wide = width;
      draw();
    });
    observer.observe(holder);
    return {
      node: [holder, words, note, listed],
      show(lineage) {
        const text = JSON.stringify(lineage);
        if (text === shown) return;
        [found, shown] = [lineage, text];
        put(note, found ? notes(found) : "");
        draw();
        list();
      },
      close: () => observer.disconnect(),
    };
  }

  return { board };
})();
