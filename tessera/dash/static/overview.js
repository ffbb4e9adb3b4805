"use strict";
/* All runs in a table, of which some can be chosen, and the comparison of those. */
const Overview = (() => {
  const { el, put } = Dom;
  const COLUMNS = [
    ["name", "Run", (r) => r.name.toLowerCase()],
    ["algorithm", "Algorithm", (r) => r.algorithm],
    ["env", "Environment", (r) => r.env],
    ["policy", "Policy", (r) => r.policy],
    ["return", "Return", (r) => r.return_mean ?? -Infinity],
    ["speed", "Steps/s", (r) => r.steps_per_second ?? -Infinity],
    ["steps", "Steps", (r) => r.env_steps ?? -Infinity],
    ["left", "Time", (r) => r.time_left ?? r.seconds ?? -Infinity],
    ["changed", "Changed", (r) => r.changed ?? -Infinity],
  ];
  const NUMBERS = new Set(["return", "speed", "steps", "left", "changed"]);

  const address = (name) => `#${new URLSearchParams({ run: name })}`;
  const compareAddress = (names) => `#${new URLSearchParams(names.map((n) => ["compare", n]))}`;

  function stateDot(state) {
    return el("span", { class: `state ${/^[a-z]+$/.test(state ?? "") ? state : "unknown"}`, "aria-hidden": "true" });
  }

  /** The table of runs. */
  function view(report) {
    const chosen = new Set();
    let [runs, order, down, folder, leftOut] = [[], "changed", true, "", 0];
    const filter = el("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", input: show });
    const compare = el("a", { class: "button", hidden: true });
    const heads = COLUMNS.map(([key, title]) => el("th", { scope: "col", class: `c-${key}${NUMBERS.has(key) ? " number" : ""}` },
      el("button", { type: "button", click: () => sort(key) }, title)));
    const body = el("tbody", {});
    const note = el("p", { class: "empty", hidden: true });
    const words = el("p", { class: "soft" });
    const node = el("section", { class: "card runs", "aria-label": "Runs" },
      el("div", { class: "section-head" }, el("h1", {}, "Runs"), el("div", { class: "tools" }, compare, filter)), words,
      el("table", {}, el("thead", {}, el("tr", {}, el("td", {}), heads)), body), note);
    const rows = new Map();

    function sort(key) {
      down = order === key ? !down : NUMBERS.has(key);
      order = key;
      show();
    }

    function show() {
      const wanted = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const text = (r) => [r.name, r.algorithm, r.env, r.policy, r.engine, r.state].join(" ").toLowerCase();
      const value = COLUMNS.find(([key]) => key === order)[2];
      const found = runs.filter((r) => wanted.every((w) => text(r).includes(w)));
      found.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.name < b.name ? -1 : 1) * (down ? -1 : 1));
      COLUMNS.forEach(([key], i) => heads[i].setAttribute("aria-sort", key === order ? (down ? "descending" : "ascending") : "none"));
      put(body, ...found.map(row));
      note.hidden = found.length > 0;
      put(note, runs.length ? "No run matches." : "No runs here yet. A run appears as soon as it begins.");
      const live = runs.filter((r) => Plan.LIVE.includes(r.state)).length;
      const more = leftOut ? `, ${leftOut} more not shown` : "";
      put(words, `${runs.length} run${runs.length === 1 ? "" : "s"}${more}, ${live} of them live, in ${folder}`);
      showChosen();
    }

    function row(r) {
      let kept = rows.get(r.name);
      if (!kept) rows.set(r.name, (kept = make(r)));
      kept.update(r);
      return kept.node;
    }

    function make({ name }) {
      const box = el("input", { type: "checkbox", "aria-label": `Compare ${name}`, change: () => {
        if (box.checked) chosen.add(name);
        else chosen.delete(name);
        showChosen();
      } });
      const cells = new Map(COLUMNS.map(([key]) => [key, el("td", { class: `c-${key}${NUMBERS.has(key) ? " number" : ""}` })]));
      const tr = el("tr", {}, el("td", { class: "c-box" }, box), [...cells.values()]);
      const link = el("a", { href: address(name) }, name);
      function update(r) {
        const dot = stateDot(r.state);
        put(cells.get("name"), dot, link, el("span", { class: "state-word soft" }, r.state));
        cells.get("name").title = r.why ? `${r.state}: ${r.why}` : r.state;
        put(cells.get("algorithm"), r.algorithm || Format.NONE);
        put(cells.get("env"), r.env || Format.NONE);
        put(cells.get("policy"), r.policy || Format.NONE);
        put(cells.get("return"), Format.number(r.return_mean));
        put(cells.get("speed"), Format.short(r.steps_per_second));
        put(cells.get("steps"), Format.short(r.env_steps));
        put(cells.get("left"), Format.known(r.time_left) ? `${Format.duration(r.time_left)} left` : Format.duration(r.seconds));
        put(cells.get("changed"), Format.ago(r.changed));
      }
      return { node: tr, update };
    }

    function showChosen() {
      const names = [...chosen].filter((n) => runs.some((r) => r.name === n));
      compare.hidden = names.length < 2;
      compare.href = compareAddress(names);
      put(compare, `Compare ${names.length} runs`);
    }

    function take(answer) {
      [runs, folder, leftOut] = [answer.runs, answer.folder, answer.left_out];
      if (runs.length === 1 && runs[0].name === ".") location.replace(address("."));
      show();
    }
    const load = () => Answers.ask("/api/runs").then(take, report);
    load();
    const stop = Answers.listen({}, { runs: take }, load);
    const clock = setInterval(show, 20_000);
    return { node, close: () => (stop(), clearInterval(clock)) };
  }

  /** Several runs: curves over each other, and what differs between their configurations. */
  function comparison(names, report) {
    const board = Curves.board({ runs: names, merge: true, report });
    const config = el("div", { class: "scroll" });
    const all = el("input", { type: "checkbox", change: () => showConfig() });
    const only = el("label", { class: "check" }, all, " also what is the same");
    const list = el("ul", { class: "chosen" }, names.map((n) => el("li", {}, el("a", { href: address(n) }, n))));
    const node = el("div", {}, el("section", { class: "card", "aria-label": "Compared runs" },
      el("div", { class: "section-head" }, el("h1", {}, `${names.length} runs`)), list),
      Dom.section("Curves", { tools: board.tools }, board.node), Dom.section("Configuration", { tools: [only] }, config));
    let found = null;

    function showConfig() {
      if (!found) return;
      const differs = new Set(found.differs);
      const keys = found.keys.filter((key) => all.checked || differs.has(key));
      const row = (key) => el("tr", { class: all.checked && differs.has(key) ? "differs" : null },
        el("th", { scope: "row" }, key), found.rows[key].map((x) => el("td", {}, x || Format.NONE)));
      put(config, keys.length
        ? el("table", { class: "config" }, el("thead", {}, el("tr", {}, el("td", {}), names.map((n) => el("th", { scope: "col" }, n)))),
          el("tbody", {}, keys.map(row)))
        : el("p", { class: "empty" }, "Nothing differs."));
    }

    async function load() {
      try {
        const runs = await Promise.all(names.map((name) => Answers.ask("/api/run", { name })));
        await board.setMetrics([...new Set(runs.flatMap((r) => r.metrics))]);
        found = await Answers.ask("/api/compare", { names });
        showConfig();
      } catch (error) {
        report(error);
      }
    }
    load();
    const stop = Answers.listen({}, { runs: () => board.refresh() }, load);
    return { node, close: () => (stop(), board.close()) };
  }

  return { view, comparison, address, stateDot };
})();
