"use strict";
/* The plan as a picture: fragments with a dot for each replica, streams as arrows that show what flows. */
const Plan = (() => {
  const { el, svg, put } = Dom;
  const LIVE = ["starting", "running", "saving", "evaluating"];
  /** Milliseconds that a death is shown for, at least: another may start sooner than anybody sees it. */
  const DEATH = 1500;
  const LEAST_SCALE = 0.75;
  const CORNER = 10;
  const ARROW = 9;
  /** State -> what it means. The order is that of the legend. */
  const STATES = {
    working: "working", waiting: "waiting", idle: "idle", starting: "starting", restarting: "restarting", dead: "dead",
    finished: "finished",
  };
  const known = (state) => (state === "running" ? "working" : Object.hasOwn(STATES, state) ? state : "unknown");

  /** A small cross in a dot of this radius. */
  const cross = (r) => `M${-r / 2.4} ${-r / 2.4}L${r / 2.4} ${r / 2.4}M${-r / 2.4} ${r / 2.4}L${r / 2.4} ${-r / 2.4}`;

  /** The point at a distance from a on the way to b, at most in the middle. */
  function towards(a, b, distance) {
    const length = Math.hypot(b[0] - a[0], b[1] - a[1]);
    const share = length ? Math.min(distance / length, 0.5) : 0;
    return [a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share];
  }

  /** The path along points, with round corners. */
  function rounded(points) {
    let path = `M${points[0]}`;
    for (let i = 1; i < points.length - 1; i++) {
      const [a, b] = [points[i - 1], points[i + 1]].map((end) => towards(points[i], end, CORNER));
      path += `L${a}Q${points[i]} ${b}`;
    }
    return `${path}L${points.at(-1)}`;
  }

  /** An arrow, its label, and what changes them. */
  function edgeParts(edge, tall) {
    const tip = edge.points.at(-1);
    const end = towards(tip, edge.points.at(-2), ARROW);
    const across = [(tip[1] - end[1]) / 2, (end[0] - tip[0]) / 2];
    const corners = [tip, ...[1, -1].map((s) => [end[0] + s * across[0], end[1] + s * across[1]])];
    const path = rounded([...edge.points.slice(0, -1), end]);
    const loose = ["async", "first"].includes(edge.mode);
    const line = svg("path", { class: loose ? "wire loose" : "wire", d: path });
    const flow = svg("path", { class: "flow", d: path });
    const head = svg("polygon", { class: "arrow", points: corners.join(" ") });
    const { x, y, w, h } = edge.label_box;
    const place = tall ? { x, "text-anchor": "start" } : { x: x + w / 2, "text-anchor": "middle" };
    const middle = y + h / 2;
    const rows = tall ? [y + 12, y + 27, y + 41, y + 55] : [middle - 8, middle + 16];
    const name = svg("tspan", { class: "stream" }, edge.label);
    const dropped = svg("tspan", { class: "dropped" });
    const details = rows.slice(1).map((at) => svg("text", { ...place, y: at, class: "soft" }));
    const title = svg("title", {}, `${edge.stream}: ${edge.detail}`);
    const label = [svg("text", { ...place, y: rows[0] }, name, dropped), ...details];
    const node = svg("g", { class: "edge" }, title, svg("path", { class: "halo", d: path }), line, flow, head, label);

    function update(stream, live) {
      const bytes = stream?.bytes_per_second ?? 0;
      const width = 1.4 + Math.min(4, 0.55 * Math.max(0, Math.log10(Math.max(bytes, 1)) - 2.5));
      line.style.strokeWidth = `${width}px`;
      flow.style.strokeWidth = `${Math.max(1.6, width * 0.7)}px`;
      const hot = Format.known(stream?.fill) ? Math.round(100 * Math.min(1, Math.max(0, stream.fill))) : 0;
      const hue = hot ? `color-mix(in oklab, var(--edge), var(--hot) ${hot}%)` : "";
      line.style.stroke = hue;
      head.style.fill = hue;
      node.classList.toggle("flowing", live && bytes > 0);
      flow.style.animationDuration = `${(2.4 - Math.min(1.8, 0.25 * Math.log10(bytes + 1))).toFixed(2)}s`;
      const lost = stream?.dropped ? `${Format.tick(stream.dropped)} dropped` : "";
      const parts = stream ? streamWords(stream) : edge.detail.split(" · ");
      put(dropped, tall ? "" : ` ${lost}`);
      if (tall) details.forEach((text, i) => put(text, [...parts, lost].filter(Boolean)[i] ?? ""));
      else put(details[0], parts.join(" · "));
      put(title, [`${edge.stream}: ${edge.detail}`, ...(stream ? streamFacts(stream) : [])].join("\n"));
    }
    return { node, update, stream: edge.stream };
  }

  /** What an arrow's label says of its stream. */
  function streamWords({ bytes_per_second: bytes, lag_mean: mean, lag_max: most }) {
    const words = [`${Format.bytes(bytes)}/s`];
    if (Format.known(mean)) words.push(`lag ${mean.toFixed(1)}, max ${Format.number(most)}`);
    return words;
  }

  function streamFacts(stream) {
    return [
      `${Format.bytes(stream.bytes_per_second)}/s in ${Format.short(stream.messages_per_second)} messages/s`,
      Format.known(stream.fill) ? `queue ${Format.percent(stream.fill)} full` : "",
      Format.known(stream.lag_mean) ? `lag ${stream.lag_mean.toFixed(2)} on average, ${stream.lag_max} at most` : "",
      stream.dropped ? `${stream.dropped} messages dropped` : "",
    ].filter(Boolean);
  }

  /** A fragment's box, and what changes its dots. */
  function nodeParts(node, index) {
    const box = { x: node.x, y: node.y, width: node.w, height: node.h, rx: 10 };
    const dots = node.dots.map(([x, y]) => {
      const title = svg("title", {});
      const r = node.radius;
      const shape = svg("g", { class: "dot unknown", transform: `translate(${x} ${y})` },
        title, svg("circle", { r }), svg("path", { class: "cross", d: cross(r) }));
      return { shape, title };
    });
    const caption = svg("text", { class: "soft", x: node.x + node.w / 2, y: node.y + node.caption, "text-anchor": "middle" });
    const pills = node.pills.map((p) => svg("g", {},
      svg("rect", { class: "pill", x: p.x, y: p.y, width: p.w, height: p.h, rx: 6 }),
      svg("text", { class: "stream", x: p.x + p.w / 2, y: p.y + 16.5, "text-anchor": "middle" }, p.operator)));
    const group = svg("g", {}, svg("rect", { class: `fragment hue${index}`, ...box }), pills, caption,
      dots.map((dot) => dot.shape));

    function update(replicas, shownState, waited) {
      const waits = Format.known(waited) ? ` · waits ${Format.percent(waited)}` : ` · ${node.place}`;
      put(caption, `${node.replicas} replica${node.replicas === 1 ? "" : "s"}${waits}`);
      dots.forEach(({ shape, title }, i) => {
        const replica = replicas.get(`${node.id}/${i}`);
        shape.setAttribute("class", `dot ${replica ? shownState(replica) : "unknown"}`);
        put(title, replica ? replicaWords(replica) : `${node.id}/${i}`);
      });
    }
    return { group, update };
  }

  function replicaWords(replica) {
    const words = [`${replica.title}: ${replica.state}${replica.stream ? ` for ${replica.stream}` : ""}`];
    if (replica.restarts) words.push(`restarted ${replica.restarts} time${replica.restarts === 1 ? "" : "s"}`);
    if (replica.process) words.push(`process ${replica.process}${replica.node ? ` on ${replica.node}` : ""}`);
    return words.join("\n");
  }

  /** Counts of replicas by state, with the dots that stand for them. */
  function legend(replicas) {
    const counts = new Map();
    for (const { state } of replicas) counts.set(known(state), (counts.get(known(state)) ?? 0) + 1);
    return [...Object.keys(STATES), "unknown"].filter((state) => counts.has(state)).map((state) =>
      el("span", { class: "key" }, dot(state), ` ${counts.get(state)} ${STATES[state] ?? "unknown"}`));
  }

  /** A dot by itself. */
  function dot(state) {
    return svg("svg", { class: "key-dot", viewBox: "-7 -7 14 14", "aria-hidden": "true" },
      svg("g", { class: `dot ${known(state)}` }, svg("circle", { r: 5.4 }), svg("path", { class: "cross", d: cross(5.4) })));
  }

  /** The replicas as a table: all that the dots say, for those who cannot point at them. */
  function table(replicas) {
    const head = ["Replica", "State", "Waits for", "Updates", "Restarts", "Process", "Since"];
    const row = (r) => el("tr", {},
      el("th", { scope: "row" }, r.title), el("td", {}, dot(r.state), ` ${r.state}`), el("td", {}, r.stream || Format.NONE),
      el("td", { class: "number" }, Format.number(r.updates)), el("td", { class: "number" }, Format.number(r.restarts)),
      el("td", { class: "number" }, `${r.process ?? Format.NONE}${r.node ? ` on ${r.node}` : ""}`),
      el("td", {}, r.since ? Format.clock(r.since) : Format.NONE));
    return el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, head.map((h, i) => el("th", { scope: "col", class: i > 2 && i < 6 ? "number" : null }, h)))), el("tbody", {}, replicas.map(row))));
  }

  /** Where the picture goes; `update` takes a status. */
  function picture(layout) {
    const holder = el("div", { class: "plan" });
    const key = el("div", { class: "keys" });
    const listed = el("details", { class: "more" }, el("summary", {}, "Replicas"), el("div", {}));
    const deaths = new Map();
    let [drawn, status, stands] = [null, null, null];

    /** Take in a status; replicas that were started again since the last one have died meanwhile. */
    function update(news) {
      const before = new Map((status?.replicas ?? []).map((r) => [r.place, r.restarts]));
      for (const r of news?.replicas ?? []) {
        if (r.restarts > (before.get(r.place) ?? r.restarts)) deaths.set(r.place, performance.now() + DEATH);
      }
      status = news;
      show();
      if (deaths.size) setTimeout(show, DEATH + 1);
    }

    /** What the dot of a replica shows. */
    function shownState(replica) {
      if (deaths.has(replica.place) && performance.now() < deaths.get(replica.place)) return "dead";
      deaths.delete(replica.place);
      return known(replica.state);
    }

    function draw(tall) {
      stands = tall;
      const shown = tall ? layout.tall : layout;
      const edges = shown.edges.map((e) => edgeParts(e, tall));
      const nodes = shown.nodes.map(nodeParts);
      drawn = { edges, nodes, layout: shown };
      const label = `Plan: ${shown.nodes.map((n) => `${n.title} × ${n.replicas}`).join(", ")}`;
      const root = svg("svg", { viewBox: `0 0 ${shown.width} ${shown.height}`, role: "img", "aria-label": label },
        edges.map((e) => e.node), nodes.map((n) => n.group));
      root.style.maxWidth = `${shown.width * 1.2}px`;
      put(holder, root);
      show();
    }

    function show() {
      if (!drawn) return;
      const replicas = new Map((status?.replicas ?? []).map((r) => [`${r.fragment}/${r.number}`, r]));
      drawn.edges.forEach((e) => e.update(status?.streams?.[e.stream], LIVE.includes(status?.state)));
      drawn.nodes.forEach((n, i) => n.update(replicas, shownState, status?.waited?.[drawn.layout.nodes[i].id]));
      put(key, ...legend(status?.replicas ?? []));
      listed.hidden = !status?.replicas?.length;
      if (!listed.hidden && listed.open) put(listed.lastChild, table(status.replicas));
    }
    listed.addEventListener("toggle", show);
    new ResizeObserver(([entry]) => {
      const tall = entry.contentRect.width < layout.width * LEAST_SCALE && layout.tall.width < layout.width;
      if (tall !== stands) draw(tall);
    }).observe(holder);
    return { node: [holder, key, listed], update };
  }

  return { picture, LIVE };
})();
