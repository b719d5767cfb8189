// Updates an open page from the event stream /console/live, which has at most one event per query and second.
// Pages are complete without it. Updates are not announced to screen readers: once a second would be noise.
(() => {
  "use strict";

  const RETRY_MS = 30000; // after a refusal: too many pages are open, or the session has ended
  const DOUBLE_MS = 5000; // later the user may have stopped the first request
  const SVG = "http://www.w3.org/2000/svg";
  let source = null;
  let retryTimer = 0;
  let ended = false;

  const setText = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };

  const setFigures = (section, figures) => {
    for (const [name, text] of Object.entries(figures)) setText(section.querySelector(`[data-figure="${name}"]`), text);
  };

  function queryString() {
    const query = new URLSearchParams();
    const names = [...document.querySelectorAll("[data-live=queues] tr[data-queue]")].map((row) => row.dataset.queue);
    if (names.length) query.set("counts", names.join(","));
    for (const kind of ["leases", "moves"]) {
      const section = document.querySelector(`[data-live=${kind}]`);
      if (section) query.set(kind, section.dataset.queue);
    }
    return query.toString();
  }

  function removedKeys(update, known) {
    return update.whole ? known.filter((key) => !(key in update.set)) : update.removed;
  }

  function counts(update) {
    const rows = new Map([...document.querySelectorAll("[data-live=queues] tr[data-queue]")].map((row) => [row.dataset.queue, row]));
    for (const name of removedKeys(update, [...rows.keys()])) rows.get(name)?.remove();
    for (const [name, figures] of Object.entries(update.set)) {
      if (rows.has(name)) setFigures(rows.get(name), figures);
    }
  }

  function parseSvg(markup) {
    const parsed = new DOMParser().parseFromString(`<svg xmlns="${SVG}">${markup}</svg>`, "image/svg+xml");
    return [...parsed.documentElement.childNodes].map((node) => document.importNode(node, true));
  }

  function leases(update) {
    const section = document.querySelector("[data-live=leases]");
    if (!section) return;
    const bars = section.querySelector(".bars");
    const known = new Map([...bars.children].map((bar) => [bar.dataset.key, bar]));
    for (const key of removedKeys(update, [...known.keys()])) known.get(key)?.remove();
    for (const [key, markup] of Object.entries(update.set)) {
      const [bar] = parseSvg(markup);
      const before = known.get(key);
      const focused = before?.contains(document.activeElement);
      if (before) before.replaceWith(bar);
      else bars.append(bar);
      if (focused) bar.querySelector("a").focus();
    }
    if ("axis" in update) section.querySelector(".axis").replaceChildren(...parseSvg(update.axis));
    if ("height" in update) section.querySelector("svg.leases").setAttribute("height", update.height);
    if ("now" in update) for (const x of ["x1", "x2"]) section.querySelector(".now").setAttribute(x, `${update.now}%`);
    if ("summary" in update) setText(section.querySelector(".summary"), update.summary);
    if ("figures" in update) {
      for (const list of document.querySelectorAll("[data-live=queue]")) setFigures(list, update.figures);
    }
  }

  function moves(update) {
    if (Object.keys(update.set).length) showMoves();
  }

  async function showMoves() {
    const reply = await fetch(location.href).catch(() => new Response()); // only the server renders the table
    const rendered = new DOMParser().parseFromString(await reply.text(), "text/html").querySelector("[data-live=moves]");
    const section = document.querySelector("[data-live=moves]");
    if (!rendered || !section) return;
    const form = section.querySelector("#redrive"); // with what was typed, and its errors
    if (section.contains(document.activeElement)) section.addEventListener("focusout", showMoves, { once: true });
    else {
      if (form) rendered.querySelector("#redrive")?.replaceWith(form);
      section.replaceChildren(...rendered.childNodes);
    }
  }

  function end({ reason }) {
    ended = true;
    close();
    warn(`This page is no longer updated. ${reason}`);
  }

  function warn(text) {
    const alert = document.querySelector("#stale") || document.createElement("p");
    alert.id = "stale";
    alert.className = "alert";
    alert.setAttribute("role", "alert");
    setText(alert, text);
    if (!alert.isConnected) document.querySelector("main").prepend(alert);
  }

  function close() {
    clearTimeout(retryTimer);
    if (source) source.close();
    source = null;
    delete document.documentElement.dataset.live;
  }

  function open() {
    close();
    const query = queryString();
    if (!query || ended || document.hidden) return;
    source = new EventSource(`/console/live?${query}`);
    const onEvent = (handle) => (event) => {
      handle(JSON.parse(event.data));
      document.querySelector("#stale")?.remove();
      document.documentElement.dataset.live = "on";
    };
    source.addEventListener("counts", onEvent(counts));
    source.addEventListener("leases", onEvent(leases));
    source.addEventListener("moves", onEvent(moves));
    source.addEventListener("end", (event) => end(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (!source) return;
      delete document.documentElement.dataset.live;
      warn("This page is not updated at present: the server cannot be reached, or too many pages are open.");
      if (source.readyState !== EventSource.CLOSED) return; // the browser reconnects
      close();
      retryTimer = setTimeout(open, RETRY_MS);
    });
  }

  let sent = null; // the form that was sent last, and when: a double click sends it once
  document.addEventListener("submit", (event) => {
    const again = sent && sent.form === event.target && event.timeStamp - sent.at < DOUBLE_MS;
    if (again) event.preventDefault();
    else if (event.target.method === "post") sent = { form: event.target, at: event.timeStamp };
  });
  document.addEventListener("visibilitychange", open);
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.closest("[data-live]") || event.target.querySelector?.("[data-live]")) open();
  });
  window.addEventListener("pagehide", close);
  open();
})();
