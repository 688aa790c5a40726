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
      window.htmx?.ajax("POST", list.getAttribute("action"), { source: list, target: "#preview", swap: "morph:outerHTML", values: { step: "preview" } })
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
  // JSON is worked out when it is written to its end: half of it is no JSON.
  const asks = (event) => {
    const list = event.target.closest?.("[data-decide]");
    const isText = event.target.matches?.("textarea");
    // Who types a rate means it.
    if (list && event.target.matches("[name=amount], [name=unit]")) find("[name=style][value=steady]", list).checked = true;
    if (list && event.target.matches("[data-pace]") && isText === (event.type === "change")) recalculate(list);
  };
  document.addEventListener("input", asks);
  document.addEventListener("change", asks);
  // All groups, none, or the recommended ones.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-tick]");
    if (!button) return;
    event.preventDefault();
    for (const box of all("#groups [name=group]")) box.checked = button.value === "all" || (button.value === "recommended" && box.hasAttribute("data-recommended"));
    recalculate(button.form);
  });
  // What was typed before this script was there, or was put back by the browser, is worked out too.
  const isTouched = (field) => (field.matches("[type=radio], [type=checkbox]") ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);
  addEventListener("load", () => {
    for (const field of all("[data-decide] input[data-pace]").filter(isTouched)) field.dispatchEvent(new Event("input", { bubbles: true }));
  });
  // Enter in a field means the button that starts: only where the pace is what was worked out.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches?.("[data-decide] input[data-pace]")) {
      event.preventDefault();
      recalculate(event.target.closest("[data-decide]"));
    }
  });
  // What was typed while the plan was being worked out stays; a refusal of the start comes back with its own values.
  const fields = (list) => [...list.elements].filter((field) => field.name && field.matches("input:not([type=hidden]), select, textarea"));
  const key = (field) => (field.matches("[type=radio], [type=checkbox]") ? `${field.name}=${field.value}` : field.name);
  let typed = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const list = find("[data-decide]");
    typed = null;
    if (!list || event.detail.target?.id !== "preview" || event.detail.xhr.status !== 200) return;
    typed = new Map(fields(list).map((field) => [key(field), [field.value, field.checked]]));
  });
  // At once, not when it has settled: what is typed in between would be overwritten.
  document.addEventListener("htmx:afterSwap", () => {
    const list = find("[data-decide]");
    if (typed && list) {
      for (const field of fields(list)) {
        if (typed.has(key(field))) [field.value, field.checked] = typed.get(key(field));
      }
    }
    typed = null;
  });
  // The form that acted is often gone with what it did: the keyboard goes on from the sentence that says what came of it.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.requestConfig?.elt?.tagName === "FORM" && event.detail.target?.id === "replay" && document.activeElement === document.body) find("#replay-sentence")?.focus({ preventScroll: true });
  });
  // Nothing was done: it goes on from the field that is to blame, or from the sentence that says why.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.requestConfig?.triggeringEvent?.type === "submit") find("main :is([aria-invalid=true], [data-refused])")?.focus();
  });
  // Which groups a held replay goes on without, and how many jobs that skips.
  const weigh = (table) => {
    const ticked = all("[name=without_groups]:checked", table), n = ticked.length, words = find("[data-skip-words]");
    if (!words) return;
    find("[data-skip-label]").textContent = `Skip ${n ? (n === 1 ? "this group" : `these ${n} groups`) : "selected groups"} and resume`;
    const jobs = ticked.reduce((sum, box) => sum + Number(box.dataset.jobs), 0), unsent = Number(words.dataset.skipWords);
    words.textContent = n && Number.isFinite(jobs) ? (jobs < unsent ? `without ${jobs.toLocaleString("en")} of ${unsent.toLocaleString("en")} unsent jobs` : "leaves no jobs to send: cancel the rest instead") : "";
    find("[data-skip]").disabled = !n;
  };
  document.addEventListener("change", (event) => { if (event.target.matches?.("#held [name=without_groups]")) weigh(event.target.closest("table")); });
  document.addEventListener("htmx:afterSettle", ready);
  ready();
})();
