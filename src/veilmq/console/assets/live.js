// Updates an open page from the event stream /console/live, which has at most one event per query and second.
// Pages are complete without it. Updates are not announced to screen readers: once a second would be noise.
(() => {
  "use strict";

  const RETRY_MS = 30000; // after a refusal: too many pages are open, or the session has ended
  const SVG = "http://www.w3.org/2000/svg";
  let source = null;
  let retryTimer = 0;

  const put = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };

  const fill = (place, figures) => {
    for (const [name, text] of Object.entries(figures)) put(place.querySelector(`[data-figure="${name}"]`), text);
  };

  function watched() {
    const query = new URLSearchParams();
    const names = [...document.querySelectorAll("[data-live=queues] tr[data-queue]")].map((row) => row.dataset.queue);
    if (names.length) query.set("counts", names.join(","));
    for (const kind of ["leases", "moves"]) {
      const place = document.querySelector(`[data-live=${kind}]`);
      if (place) query.set(kind, place.dataset.queue);
    }
    return query.toString();
  }

  function counts(update) {
    for (const [name, figures] of Object.entries(update.set)) {
      const row = document.querySelector(`[data-live=queues] tr[data-queue="${CSS.escape(name)}"]`);
      if (row) fill(row, figures);
    }
  }

  function parseSvg(markup) {
    const parsed = new DOMParser().parseFromString(`<svg xmlns="${SVG}">${markup}</svg>`, "image/svg+xml");
    return [...parsed.documentElement.childNodes].map((node) => document.importNode(node, true));
  }

  function leases(update) {
    const place = document.querySelector("[data-live=leases]");
    if (!place) return;
    const bars = place.querySelector(".bars");
    const known = new Map([...bars.children].map((bar) => [bar.dataset.key, bar]));
    const gone = update.whole ? [...known.keys()].filter((key) => !(key in update.set)) : update.gone;
    for (const key of gone) known.get(key)?.remove();
    for (const [key, markup] of Object.entries(update.set)) {
      const [bar] = parseSvg(markup);
      const before = known.get(key);
      const focused = before?.contains(document.activeElement);
      if (before) before.replaceWith(bar);
      else bars.append(bar);
      if (focused) bar.querySelector("a").focus();
    }
    if ("axis" in update) place.querySelector(".axis").replaceChildren(...parseSvg(update.axis));
    if ("height" in update) place.querySelector("svg.leases").setAttribute("height", update.height);
    if ("now" in update) for (const x of ["x1", "x2"]) place.querySelector(".now").setAttribute(x, `${update.now}%`);
    if ("summary" in update) put(place.querySelector(".summary"), update.summary);
    if ("figures" in update) {
      for (const list of document.querySelectorAll("[data-live=queue]")) fill(list, update.figures);
    }
  }

  async function moves(update) {
    if (update.whole) return;
    const reply = await fetch(location.href); // only the server renders the table
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").querySelector("[data-live=moves]");
    const place = document.querySelector("[data-live=moves]");
    if (fresh && place && !place.contains(document.activeElement)) place.replaceChildren(...fresh.childNodes);
  }

  function close() {
    clearTimeout(retryTimer);
    if (source) source.close();
    source = null;
    delete document.documentElement.dataset.live;
  }

  function open() {
    close();
    const query = watched();
    if (!query || document.hidden) return;
    source = new EventSource(`/console/live?${query}`);
    const onEvent = (handle) => (event) => {
      handle(JSON.parse(event.data));
      document.documentElement.dataset.live = "on";
    };
    source.addEventListener("counts", onEvent(counts));
    source.addEventListener("leases", onEvent(leases));
    source.addEventListener("moves", onEvent(moves));
    source.addEventListener("over", close);
    source.addEventListener("error", () => {
      if (!source || source.readyState !== EventSource.CLOSED) return; // the browser reconnects
      close();
      retryTimer = setTimeout(open, RETRY_MS);
    });
  }

  document.addEventListener("visibilitychange", open);
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.closest("[data-live]") || event.target.querySelector?.("[data-live]")) open();
  });
  window.addEventListener("pagehide", close);
  open();
})();
