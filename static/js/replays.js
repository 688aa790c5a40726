// New replay: the plan is worked out again when the pace changes. Pages work without it.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  const ready = () => { for (const button of all("[data-recalculate]")) button.hidden = true; };
  let waiting = 0;
  let isStarting = false;
  const recalculate = (list) => {
    clearTimeout(waiting);
    if (isStarting) return;
    waiting = setTimeout(() => {
      const values = { step: "preview" };
      for (const [name, value] of new FormData(list)) values[name] = value;
      values.step = "preview";
      window.htmx?.ajax("POST", list.getAttribute("action"), { source: list, target: "#preview", swap: "morph:outerHTML", values })
        .catch(() => { /* given up for a newer one, or the start */ });
    }, 250);
  };
  // A start goes before the plan that is being worked out, and nothing goes before a start.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches?.("[data-decide]")) return;
    clearTimeout(waiting);
    isStarting = true;
  }, true);
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.requestConfig?.triggeringEvent?.type === "submit") isStarting = false;
  });
  addEventListener("pageshow", () => { isStarting = false; });
  document.addEventListener("input", (event) => {
    const list = event.target.closest?.("[data-decide]");
    if (list && event.target.matches("[data-pace]")) recalculate(list);
  });
  // Enter in a field means the button that starts: only where the pace is what was worked out.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches?.("[data-decide] [name=amount]")) {
      event.preventDefault();
      recalculate(event.target.closest("[data-decide]"));
    }
  });
  // What was typed while the plan was being worked out stays; a refusal of the start comes back with its own values.
  const TYPED = ["reason", "confirm", "amount"];
  let typed = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const list = find("[data-decide]");
    typed = null;
    if (!list || event.detail.target?.id !== "preview" || event.detail.xhr.status !== 200) return;
    typed = new Map(TYPED.map((name) => [name, list.elements[name]?.value]));
  });
  // At once, not when it has settled: what is typed in between would be overwritten.
  document.addEventListener("htmx:afterSwap", () => {
    const list = find("[data-decide]");
    if (typed && list) {
      for (const [name, value] of typed) if (value !== undefined && list.elements[name]) list.elements[name].value = value;
    }
    typed = null;
  });
  document.addEventListener("htmx:afterSettle", ready);
  ready();
})();
