"use strict";
/* Elements and formats. Words that come from runs only ever become text nodes and attributes' values. */
const Dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(name, value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }

  /** An HTML element; attributes that are functions listen to the event of that name. */
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

  /** An SVG element. */
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  /** Replace what a node holds, unless it holds the same text already. */
  function put(node, ...children) {
    if (children.length === 1 && typeof children[0] === "string") {
      if (node.textContent !== children[0]) node.textContent = children[0];
    } else {
      node.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
    }
    return node;
  }

  /** The colour that a custom property stands for now, as a canvas understands it. */
  function colour(name) {
    const probe = el("span", { hidden: true });
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  /** A card with a heading. */
  function section(title, { id, tools = [] } = {}, ...children) {
    const head = el("div", { class: "section-head" }, el("h2", {}, title), el("div", { class: "tools" }, tools));
    return el("section", { class: "card", id, "aria-label": title }, head, children);
  }

  /** A row of buttons of which one is chosen. */
  function choice(label, options, chosen, change) {
    const buttons = options.map(([value, words]) =>
      el("button", { type: "button", "aria-pressed": String(value === chosen), click: () => pick(value) }, words));
    function pick(value) {
      options.forEach(([other], i) => buttons[i].setAttribute("aria-pressed", String(other === value)));
      change(value);
    }
    return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  }

  return { el, svg, put, colour, section, choice };
})();

const Format = (() => {
  const known = (x) => typeof x === "number" && Number.isFinite(x);
  const NONE = "–";

  /** Four digits that matter. */
  function number(x) {
    if (!known(x)) return NONE;
    const size = Math.abs(x);
    if (size >= 1e6) return short(x);
    if (size >= 1000) return Math.round(x).toLocaleString("en-US");
    if (Number.isInteger(x)) return String(x);
    if (size >= 100) return x.toFixed(1);
    if (size >= 1) return x.toFixed(2);
    if (size >= 1e-3) return x.toPrecision(3);
    return x.toExponential(1);
  }

  /** 15.4 k, 2.1 M. */
  function short(x) {
    if (!known(x)) return NONE;
    for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(x) >= size) return `${(x / size).toPrecision(3)} ${unit}`;
    }
    return Number.isInteger(x) ? String(x) : x.toPrecision(3);
  }

  /** A number at an axis: no digits that say nothing. */
  const tick = (x) => short(x).replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");

  function bytes(x) {
    if (!known(x)) return NONE;
    if (x < 1) return "0 B";
    return x < 1000 ? `${Math.round(x)} B` : `${short(x)}B`;
  }

  function duration(seconds) {
    if (!known(seconds)) return NONE;
    const s = Math.round(seconds);
    if (s < 60) return `${seconds < 10 && seconds > 0 ? seconds.toFixed(1) : s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
    if (s < 172800) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
    return `${(s / 86400).toFixed(1)} days`;
  }

  function ago(unix) {
    const s = Math.max(0, Date.now() / 1000 - unix);
    if (!known(s) || !unix) return NONE;
    if (s < 5) return "now";
    if (s < 60) return `${Math.round(s)} s ago`;
    if (s < 3600) return `${Math.round(s / 60)} min ago`;
    if (s < 86400) return `${Math.round(s / 3600)} h ago`;
    return `${Math.round(s / 86400)} d ago`;
  }

  const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
  const date = (unix) => new Date(unix * 1000).toLocaleString("en-GB");
  const percent = (share) => (known(share) ? `${Math.round(100 * share)} %` : NONE);

  /** A metric's name as words. */
  function metric(name) {
    const fixed = { train_return_mean: "return", "eval/return_mean": "evaluation", steps_per_second: "steps/s" };
    return fixed[name] ?? name.replace(/^(learn|info)\//, "").replaceAll("_", " ");
  }

  return { known, number, short, tick, bytes, duration, ago, clock, date, percent, metric, NONE };
})();

const Theme = (() => {
  const KEY = "tessera-theme";
  const listeners = new Set();
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

  function start(button) {
    if (["dark", "light"].includes(stored())) document.documentElement.dataset.theme = stored();
    const show = () => Dom.put(button, isDark() ? "Light" : "Dark");
    const changed = () => [show, ...listeners].forEach((tell) => tell());
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem(KEY, document.documentElement.dataset.theme);
      } catch {
        /* a page without storage forgets the choice */
      }
      changed();
    });
    system.addEventListener("change", changed);
    button.setAttribute("aria-label", "Change between dark and light");
    show();
  }

  return { start, listeners };
})();
