"use strict";
/* What the page knows: answers of the server, or those that a saved report holds. */
const Answers = (() => {
  const saved = (() => {
    const node = document.getElementById("answers");
    return node ? JSON.parse(node.textContent) : null;
  })();
  const listeners = new Set();
  let connected = null;

  function setConnected(state) {
    if (connected === state) return;
    connected = state;
    listeners.forEach((tell) => tell(state));
  }

  /** The address of an answer; the same question always has the same one. */
  function address(path, params = {}) {
    const pairs = Object.entries(params).flatMap(([name, value]) => [value].flat().map((x) => [name, x]));
    const query = new URLSearchParams(pairs).toString();
    return query ? `${path}?${query}` : path;
  }

  /** Curves of a report, whatever they were asked for together with. */
  function savedCurves({ run, metric, by }) {
    const all = Object.entries(saved).filter(([key, x]) => key.startsWith("/api/curves") && x.by === by);
    const curves = all.flatMap(([, x]) => x.curves);
    const wanted = curves.filter((c) => [run].flat().includes(c.run) && [metric].flat().includes(c.metric));
    return { by, curves: wanted };
  }

  /** Ask the server; throws an Error whose message can be shown. */
  async function ask(path, params) {
    if (saved) {
      if (path === "/api/curves") return savedCurves(params);
      const found = saved[address(path, params)] ?? saved[decodeURIComponent(address(path, params))];
      if (found === undefined) throw new Error("This report does not hold that.");
      return found;
    }
    let response;
    try {
      response = await fetch(address(path, params));
    } catch {
      setConnected(false);
      throw new Error("Not connected: the server does not answer.");
    }
    setConnected(true);
    const answer = await response.json().catch(() => ({ error: `The server answered with ${response.status}.` }));
    if (!response.ok) throw new Error(answer.error ?? `The server answered with ${response.status}.`);
    return answer;
  }

  /**
   * Hear events until the returned function is called. A lost connection is made again, and `again` told. A page that
   * nobody sees hears nothing: browsers keep six connections to a server, and the seventh tab would wait for ever.
   */
  function listen(params, handlers, again) {
    if (saved) return () => {};
    let source = null;
    let timer = 0;
    let lost = false;
    function open() {
      if (document.hidden) return;
      source = new EventSource(address("/api/events", params));
      source.onopen = () => {
        setConnected(true);
        if (lost) again();
        lost = false;
      };
      source.onerror = () => {
        lost = true;
        setConnected(false);
        source.close();
        timer = setTimeout(open, 2000);
      };
      for (const [name, handle] of Object.entries(handlers)) {
        source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
      }
    }
    function close() {
      clearTimeout(timer);
      source?.close();
    }
    function shown() {
      close();
      lost = true;
      open();
    }
    document.addEventListener("visibilitychange", shown);
    open();
    return () => {
      document.removeEventListener("visibilitychange", shown);
      close();
    };
  }

  return { ask, listen, address, listeners, isReport: saved !== null, names: () => reportNames() };

  /** Runs that a report holds. */
  function reportNames() {
    const keys = Object.keys(saved ?? {}).filter((key) => key.startsWith("/api/run?"));
    return keys.map((key) => new URLSearchParams(key.slice("/api/run?".length)).get("name"));
  }
})();
