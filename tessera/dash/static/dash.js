"use strict";
/* Which view the address asks for, and how the connection is. */
(() => {
  const { el, put } = Dom;
  const main = document.getElementById("main");
  const crumb = document.getElementById("crumb");
  const connection = document.getElementById("connection");
  let view = null;

  /** An error of an answer, where the view is, without ending it. */
  function report(error) {
    const old = main.querySelector(".problem");
    const node = el("p", { class: "problem", role: "alert" }, error.message);
    if (old) old.replaceWith(node);
    else main.prepend(node);
  }

  function open() {
    view?.close();
    const params = new URLSearchParams(location.hash.slice(1));
    let title = "";
    if (params.has("run") || Answers.isReport) {
      title = params.get("run") ?? Answers.names()[0] ?? ".";
      view = Run.view(title, report);
    } else if (params.has("compare")) {
      title = "comparison";
      view = Overview.comparison(params.getAll("compare"), report);
    } else {
      view = Overview.view(report);
    }
    put(main, view.node);
    put(crumb, title && title !== "." ? `/ ${title}` : "");
    document.title = title && title !== "." ? `${title} – Tessera` : "Tessera";
  }

  Answers.listeners.add((connected) => {
    connection.classList.toggle("lost", !connected);
    put(connection, connected ? "connected" : "not connected, trying again");
    if (connected) main.querySelector(".problem")?.remove();
  });
  if (Answers.isReport) put(connection, "saved report");
  Theme.start(document.getElementById("theme"));
  window.addEventListener("hashchange", () => {
    open();
    main.focus();
  });
  open();
})();
