// Moves what an open page shows: the server tells once a second what changed (/console/live), and this puts it in place.
// Pages are whole without it. Nothing is announced to screen readers: a figure that changes each second would be noise.
(() => {
  "use strict";

  const AGAIN_MS = 30000; // when the server takes no more pages, or wants one to sign in
  const SVG = "http://www.w3.org/2000/svg";
  let source = null;
  let waiting = 0;

  const put = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };

  const fill = (place, figures) => {
    for (const [name, text] of Object.entries(figures)) put(place.querySelector(`[data-figure="${name}"]`), text);
  };

  function question() {
    const query = new URLSearchParams();
    const names = [...document.querySelectorAll("[data-live=queues] tr[data-queue]")].map((row) => row.dataset.queue);
    if (names.length) query.set("counts", names.join(","));
    for (const kind of ["leases", "moves"]) {
      const place = document.querySelector(`[data-live=${kind}]`);
      if (place) query.set(kind, place.dataset.queue);
    }
    return query.toString();
  }

  function counts(told) {
    for (const [name, figures] of Object.entries(told.set)) {
      const row = document.querySelector(`[data-live=queues] tr[data-queue="${CSS.escape(name)}"]`);
      if (row) fill(row, figures);
    }
  }

  function drawn(markup) {
    const parsed = new DOMParser().parseFromString(`<svg xmlns="${SVG}">${markup}</svg>`, "image/svg+xml");
    return [...parsed.documentElement.childNodes].map((node) => document.importNode(node, true));
  }

  function leases(told) {
    const place = document.querySelector("[data-live=leases]");
    if (!place) return;
    const bars = place.querySelector(".bars");
    const known = new Map([...bars.children].map((bar) => [bar.dataset.key, bar]));
    const gone = told.whole ? [...known.keys()].filter((key) => !(key in told.set)) : told.gone;
    for (const key of gone) known.get(key)?.remove();
    for (const [key, markup] of Object.entries(told.set)) {
      const [bar] = drawn(markup);
      const before = known.get(key);
      const focused = before?.contains(document.activeElement);
      if (before) before.replaceWith(bar);
      else bars.append(bar);
      if (focused) bar.querySelector("a").focus();
    }
    if ("axis" in told) place.querySelector(".axis").replaceChildren(...drawn(told.axis));
    if ("height" in told) place.querySelector("svg.leases").setAttribute("height", told.height);
    if ("now" in told) for (const x of ["x1", "x2"]) place.querySelector(".now").setAttribute(x, `${told.now}%`);
    if ("summary" in told) put(place.querySelector(".summary"), told.summary);
    if ("figures" in told) {
      for (const list of document.querySelectorAll("[data-live=queue]")) fill(list, told.figures);
    }
  }

  async function moves(told) {
    if (told.whole) return;
    const reply = await fetch(location.href); // one drawing of them, the page's own
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").querySelector("[data-live=moves]");
    const place = document.querySelector("[data-live=moves]");
    if (fresh && place && !place.contains(document.activeElement)) place.replaceChildren(...fresh.childNodes);
  }

  function close() {
    clearTimeout(waiting);
    if (source) source.close();
    source = null;
    delete document.documentElement.dataset.live;
  }

  function open() {
    close();
    const query = question();
    if (!query || document.hidden) return;
    source = new EventSource(`/console/live?${query}`);
    const heard = (handle) => (event) => {
      handle(JSON.parse(event.data));
      document.documentElement.dataset.live = "on";
    };
    source.addEventListener("counts", heard(counts));
    source.addEventListener("leases", heard(leases));
    source.addEventListener("moves", heard(moves));
    source.addEventListener("over", close);
    source.addEventListener("error", () => {
      if (!source || source.readyState !== EventSource.CLOSED) return; // it comes again by itself
      close();
      waiting = setTimeout(open, AGAIN_MS);
    });
  }

  document.addEventListener("visibilitychange", open);
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.closest("[data-live]") || event.target.querySelector?.("[data-live]")) open();
  });
  window.addEventListener("pagehide", close);
  open();
})();
