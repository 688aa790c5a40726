// New replay: recalculates the plan when the pace changes. Pages work without this script.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  const ready = () => { for (const button of all("[data-recalculate]")) button.hidden = true; };
  let waiting = 0;
  let isStarting = false;
  // Until a person chooses a pace, it is the default for the selected groups.
  const PACE = "[name=style], [name=amount], [name=unit]";
  let isPaceChosen = false;
  const hasDefaultPace = (list) => list.matches("[data-default-pace]") && !isPaceChosen;
  const recalculate = (list) => {
    clearTimeout(waiting);
    if (isStarting) return;
    waiting = setTimeout(() => {
      window.htmx?.ajax("POST", list.getAttribute("action"), { source: list, target: "#preview", swap: "morph:outerHTML", values: { step: "preview", ...(hasDefaultPace(list) && { pace: "default" }) } })
        .catch(() => { /* aborted by a newer one, or the start */ });
    }, 250);
  };
  // A start cancels a pending recalculation, and no recalculation begins during a start. Only a start requires the reason.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches?.("[data-decide]")) return;
    const reason = find("#replay-reason[aria-required]", event.target);
    if (reason && event.submitter?.value === "start") {
      reason.required = true;
      const isGiven = reason.reportValidity();
      reason.required = false;
      if (!isGiven) {
        event.preventDefault();
        event.stopImmediatePropagation();
        return;
      }
    }
    clearTimeout(waiting);
    isStarting = true;
  }, true);
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.requestConfig?.triggeringEvent?.type === "submit") isStarting = false;
  });
  addEventListener("pageshow", () => { isStarting = false; });
  // JSON is evaluated on change, not on input, when it may be incomplete.
  const asks = (event) => {
    const list = event.target.closest?.("[data-decide]");
    const isText = event.target.matches?.("textarea");
    if (list && event.target.matches(PACE)) isPaceChosen = true;
    // Typing a rate selects the style with a constant rate.
    if (list && event.target.matches("[name=amount], [name=unit]")) find("[name=style][value=steady]", list).checked = true;
    if (list && event.target.matches("[data-pace]") && isText === (event.type === "change")) recalculate(list);
  };
  document.addEventListener("input", asks);
  document.addEventListener("change", asks);
  // Selects all groups, none, or the recommended ones.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-tick]");
    if (!button) return;
    event.preventDefault();
    for (const box of all("#groups [name=group]")) box.checked = button.value === "all" || (button.value === "recommended" && box.hasAttribute("data-recommended"));
    recalculate(button.form);
  });
  // Recalculates for values typed before this script was loaded, or restored by the browser.
  const isTouched = (field) => (field.matches("[type=radio], [type=checkbox]") ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);
  addEventListener("load", () => {
    for (const field of all("[data-decide] input[data-pace]").filter(isTouched)) field.dispatchEvent(new Event("input", { bubbles: true }));
  });
  // Enter in a pace field recalculates instead of clicking the start button, so that the shown plan is the one started.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches?.("[data-decide] input[data-pace]")) {
      event.preventDefault();
      recalculate(event.target.closest("[data-decide]"));
    }
  });
  // Values typed during a recalculation stay; a refused start returns its own values.
  const fields = (list) => [...list.elements].filter((field) => field.name && field.matches("input:not([type=hidden]), select, textarea"));
  const key = (field) => (field.matches("[type=radio], [type=checkbox]") ? `${field.name}=${field.value}` : field.name);
  let typed = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const list = find("[data-decide]");
    typed = null;
    if (!list || event.detail.target?.id !== "preview" || event.detail.xhr.status !== 200) return;
    typed = new Map(fields(list).filter((field) => !hasDefaultPace(list) || !field.matches(PACE)).map((field) => [key(field), [field.value, field.checked]]));
  });
  // On afterSwap, not afterSettle, which would overwrite values typed in between.
  document.addEventListener("htmx:afterSwap", () => {
    const list = find("[data-decide]");
    if (typed && list) {
      for (const field of fields(list)) {
        if (typed.has(key(field))) [field.value, field.checked] = typed.get(key(field));
      }
    }
    typed = null;
  });
  // The form of the act is often removed by it: focus moves to the sentence with the result.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.requestConfig?.elt?.tagName === "FORM" && event.detail.target?.id === "replay" && document.activeElement === document.body) find("#replay-sentence")?.focus({ preventScroll: true });
  });
  // After a refusal, focus moves to the invalid field, or to the sentence with the reason.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.requestConfig?.triggeringEvent?.type === "submit") find("main :is([aria-invalid=true], [data-refused])")?.focus();
  });
  // Groups skipped by resuming a held replay, and the number of their jobs.
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
