"use strict";
/* One run: its header and verdict, plan, curves, timeline, videos and configuration. */
const Run = (() => {
  const { el, put } = Dom;
  const SILENCE = 15;
  const EVERY = 2000;

  function view(name, report) {
    const head = header(name);
    const plan = el("div", {});
    const board = Curves.board({ runs: [name], report });
    const timeline = Timeline.board();
    const events = el("div", { class: "scroll" });
    const videos = el("div", { class: "videos" });
    const config = el("div", { class: "scroll" });
    const people = el("div", { class: "scroll" });
    const lineage = Lineage.board();
    const trace = el("p", { class: "perfetto soft" });
    const parts = {
      plan: Dom.section("Plan", { id: "plan" }, plan),
      curves: Dom.section("Curves", { id: "curves", tools: board.tools }, board.node),
      timeline: Dom.section("Timeline", { id: "timeline", tools: timeline.tools }, timeline.node, trace),
      videos: Dom.section("Videos", { id: "videos" }, videos),
      people: Dom.section("Members", { id: "members" }, people),
      lineage: Dom.section("Lineage", { id: "lineage" }, lineage.node),
      events: Dom.section("Events", { id: "events" }, events),
      config: Dom.section("Configuration", { id: "config" }, config),
    };
    const node = el("div", {}, head.node, Object.values(parts));
    for (const part of [parts.timeline, parts.videos, parts.people, parts.lineage, parts.events]) part.hidden = true; // until there are any
    let [picture, marks, known, metrics, timer, closed] = [null, [], "", [], 0, false];

    function showNews(news) {
      head.show(news);
      picture?.update(news.status);
    }

    function showMarks(found) {
      marks = found;
      board.setMarks(marks);
      parts.events.hidden = !marks.length;
      const row = (m) => el("tr", {}, el("td", {}, m.time ? Format.clock(m.time) : Format.NONE),
        el("td", { class: "number" }, Format.short(m.env_steps)), el("td", {}, el("span", { class: `mark ${markClass(m.kind)}` }, m.kind.replaceAll("_", " "))),
        el("td", {}, m.text));
      const heads = ["Time", "Steps", "Event", ""].map((h, i) => el("th", { scope: "col", class: i === 1 ? "number" : null }, h));
      put(events, el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, marks.slice(-200).reverse().map(row))));
    }

    /** The whole answer; what has not changed stays as it is. */
    function show(run) {
      const layout = JSON.stringify(run.plan);
      if (layout !== known) {
        known = layout;
        picture = run.plan?.nodes?.length ? Plan.picture(run.plan) : null;
        put(plan, ...(picture?.node ?? [el("p", { class: "empty" }, "This run has no plan yet.")]));
      }
      showMarks(run.marks ?? []);
      showNews(run);
      metrics = run.metrics ?? [];
      board.setMetrics(metrics);
      showVideos(run.videos ?? []);
      showConfig(config, run.config ?? {});
      showPopulation(run.population);
      showTrace(run.has_trace);
    }

    function showPopulation(population) {
      parts.people.hidden = !showPeople(people, population);
      parts.lineage.hidden = !population?.lineage;
      lineage.show(population?.lineage ?? null);
    }

    function showVideos(found) {
      parts.videos.hidden = !found.length;
      const newest = [...found].sort((a, b) => b.update - a.update).slice(0, 12);
      const files = newest.map((v) => v.file).join("\n");
      if (videos.dataset.files === files) return;
      videos.dataset.files = files;
      put(videos, ...newest.map((v) => {
        const src = Answers.address("/video", { name, file: v.file });
        const words = `after update ${Format.number(v.update)}`;
        const shown = v.file.endsWith(".gif")
          ? el("img", { src, alt: `A greedy episode ${words}`, loading: "lazy" })
          : el("video", { src, controls: true, muted: true, loop: true, preload: "metadata", "aria-label": `A greedy episode ${words}` });
        return el("figure", {}, shown, el("figcaption", { class: "soft" }, `${words} · ${Format.bytes(v.bytes)}`));
      }));
    }

    function showTrace(there) {
      if (Answers.isReport) return put(trace);
      if (!there) return put(trace, "Samples of a moment every few seconds. With --trace RUN/trace.json a run keeps all of them, for ui.perfetto.dev.");
      const link = el("a", { class: "button", href: Answers.address("/api/trace", { name }), download: "trace.json",
        title: "Downloads the trace. Open ui.perfetto.dev yourself and drop the file there." }, "Download the trace");
      return put(trace, link, " and open it at ui.perfetto.dev: this page sends it nowhere.");
    }

    const load = () => Answers.ask("/api/run", { name }).then((run) => closed || show(run), report);

    function showSpans(spans) {
      parts.timeline.hidden = !spans?.replicas?.some((r) => r.spans.length);
      timeline.show(spans);
    }

    /** Spans, as often as they change, while somebody looks. */
    async function follow() {
      clearTimeout(timer);
      if (!document.hidden && !closed) {
        const began = performance.now();
        await Answers.ask("/api/spans", { name }).then(showSpans, () => {});
        if (head.isLive()) timer = setTimeout(follow, Math.max(EVERY, 5 * (performance.now() - began)));
      } else if (!closed) {
        timer = setTimeout(follow, EVERY);
      }
    }

    let [last, due] = [-EVERY, 0];
    /** New rows: curves are asked for again, at most every two seconds, and for the last rows too. */
    function newRows() {
      due ||= setTimeout(() => {
        [last, due] = [performance.now(), 0];
        if (metrics.length) board.refresh();
        else load();
      }, Math.max(0, last + EVERY - performance.now()));
    }

    load().then(follow);
    const clock = setInterval(() => head.tick(), 1000);
    const again = () => load().then(follow);
    const stop = Answers.listen({ name }, {
      run: showNews,
      rows: newRows,
      marks: load,
      videos: showVideos,
      population: showPopulation,
    }, again);
    return {
      node,
      close() {
        closed = true;
        stop();
        clearInterval(clock);
        clearTimeout(timer);
        clearTimeout(due);
        board.close();
        timeline.close();
        lineage.close();
      },
    };
  }

  const markClass = (kind) => (/^[a-z_]+$/.test(kind) ? kind : "other");

  /** The figures at the top. */
  function header(name) {
    const dot = el("span", {});
    const state = el("span", { class: "state-name" });
    const what = el("p", { class: "what soft" });
    const verdict = el("p", { class: "verdict" });
    const hints = el("ul", { class: "hints" });
    const bar = el("div", { class: "progress", role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100 }, el("span", {}));
    const figures = Object.fromEntries(["Return", "Evaluation", "Steps per second", "Steps", "Updates", "Time left"].map((title) => {
      const value = el("span", { class: "figure" }, Format.NONE);
      const note = el("span", { class: "soft" });
      return [title, { value, note, title: el("span", { class: "soft" }, title) }];
    }));
    const tiles = Object.values(figures).map((f) => el("div", { class: "tile" }, f.title, f.value, f.note));
    const node = el("section", { class: "card head", "aria-label": "Summary" },
      el("div", { class: "title" }, el("h1", {}, name === "." ? "Run" : name), el("span", { class: "badge" }, dot, state)), what,
      el("div", { class: "tiles" }, tiles), bar, verdict, hints);
    let news = null;

    const set = (title, value, note = "") => (put(figures[title].value, value), put(figures[title].note, note));

    /** The run's state; one that has not been heard of is told so. */
    function stateWords() {
      const { state: is, why } = news.header;
      const heard = news.status?.time;
      const silent = Plan.LIVE.includes(is) && heard && Date.now() / 1000 - heard > SILENCE && !Answers.isReport;
      if (silent) return ["stale", `no sign of life since ${Format.clock(heard)}`];
      if (/^no sign of life/.test(why ?? "")) return ["stale", why];
      return [is || "unknown", is || "unknown"];
    }

    function tick() {
      if (!news) return;
      const [kind, words] = stateWords();
      put(dot, Overview.stateDot(kind));
      put(state, words);
    }

    function show(found) {
      news = found;
      const h = found.header;
      tick();
      put(what, [h.algorithm && `${h.algorithm} on ${h.env}`, h.policy && `${h.policy} policy`, h.engine && `${h.engine} engine`].filter(Boolean).join(" · "));
      set("Return", Format.number(h.return_mean), "training, last 100 episodes");
      const interval = h.eval_interval;
      set("Evaluation", Format.number(h.eval_return_mean), interval ? `${Format.number(interval[0])} to ${Format.number(interval[1])}` : Format.known(h.eval_return_mean) ? "greedy episodes" : "none yet");
      set("Steps per second", Format.short(h.steps_per_second));
      set("Steps", Format.short(h.env_steps));
      set("Updates", Format.number(h.update), h.updates ? `of ${Format.number(h.updates)}` : "");
      const live = Plan.LIVE.includes(h.state);
      put(figures["Time left"].title, live ? "Time left" : "Time");
      set("Time left", Format.duration(live ? h.time_left : h.seconds), live ? `${Format.duration(h.seconds)} so far` : "of training");
      const share = h.updates ? Math.min(1, h.update / h.updates) : 0;
      bar.hidden = !h.updates;
      bar.setAttribute("aria-valuenow", Math.round(100 * share));
      bar.firstChild.style.width = `${100 * share}%`;
      put(verdict, found.verdict ?? "");
      if (found.hints) put(hints, ...found.hints.map((hint) => el("li", {}, hint)));
    }

    return { node, show, tick, isLive: () => Plan.LIVE.includes(news?.header.state) };
  }

  function showConfig(node, entries) {
    const keys = Object.keys(entries);
    if (node.dataset.keys === JSON.stringify(entries)) return;
    node.dataset.keys = JSON.stringify(entries);
    put(node, keys.length
      ? el("dl", { class: "settings" }, keys.map((key) => el("div", {}, el("dt", {}, key), el("dd", {}, entries[key]))))
      : el("p", { class: "empty" }, "No configuration yet."));
  }

  /** Members of a population, or the runs of several seeds; whether there are any. */
  function showPeople(node, population) {
    if (!population?.members?.length) return false;
    const members = population.members;
    const plain = Object.keys(members[0]).filter((key) => !["name", "tuned"].includes(key)).map((key) => [key, (m) => m[key]]);
    const tuned = [...new Set(members.flatMap((m) => Object.keys(m.tuned ?? {})))].map((key) => [key, (m) => m.tuned?.[key]]);
    const columns = [...plain, ...tuned].map(([key, value]) => [key, value, members.some((m) => typeof value(m) === "number") ? "number" : null]);
    const cell = (x) => (typeof x === "number" ? Format.number(x) : String(x ?? Format.NONE));
    const row = (m) => el("tr", {}, el("th", { scope: "row" }, el("a", { href: Overview.address(m.name) }, m.name)),
      columns.map(([, value, kind]) => el("td", { class: kind }, cell(value(m)))));
    const heads = columns.map(([key, , kind]) => el("th", { scope: "col", class: kind }, key.replaceAll("_", " ")));
    put(node, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Member"), heads)),
      el("tbody", {}, members.map(row))));
    return true;
  }

  return { view };
})();
