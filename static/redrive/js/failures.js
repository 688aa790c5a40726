// List of failures: acts on the selection and their undo, and the failure beside the list. Pages work without this script.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const form = () => find("[data-selection]");
  const query = () => find("#results")?.dataset.query ?? "";

  // ---------- selection ----------
  const everything = () => Boolean(find("[data-everything]")?.checked);
  const count = (n) => n.toLocaleString("en");
  const { boxes, read, keep, elsewhere, show } = window.redriveSelection({
    list: form,
    key: "redrive-selection",
    field: "selection",
    most: 10000,
    scope: query,
    everything,
    said: (chosen, others) =>
      everything() || !chosen ? "" : `${count(chosen)} selected${others ? `, ${count(others)} on other pages` : ""}`,
    shown: (chosen) => {
      const words = everything() ? form().dataset.allJobs : chosen === 1 ? "1 job" : chosen ? `${count(chosen)} jobs` : "";
      for (const short of all("[data-picked-short]", form())) short.textContent = words;
    },
  });
  document.addEventListener("change", (event) => { if (event.target.matches?.("[data-everything]")) show(); });
  // Acts sent by htmx include the selection.
  document.addEventListener("htmx:configRequest", (event) => {
    if (!event.target.matches?.("[data-act]")) return;
    const others = elsewhere();
    if (others.length) event.detail.formData.append("selection", others.join(","));
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.requestConfig?.elt?.matches?.("[data-act]:not([data-act=stays])") && event.detail.xhr.status === 200) keep([]);
  });
  // After an act removed the focused row, the focus moves to the next one; after an undo, to the restored one.
  let place = 0;
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!event.target.matches?.("[data-act]")) return;
    place = Math.max(0, boxes().findIndex((box) => box.checked || box.closest(".is-at")));
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.requestConfig?.verb !== "post" || event.detail.target?.id !== "results") return;
    if (document.activeElement && document.activeElement !== document.body) return;
    const links = all("#results .row-link");
    const title = find("#results h1");
    const next = links[Math.min(place, links.length - 1)] ?? title;
    if (next === title) title?.setAttribute("tabindex", "-1");
    next?.focus();
  });
  // Enter in a reason triggers the act of its menu, not the form's first button.
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Enter" && event.target.matches?.("input") && event.target.closest("[data-act-menu]");
    if (menu) { event.preventDefault(); find("[data-act]", menu).click(); }
  });
  // A keyboard act without a selection applies to the focused row.
  document.addEventListener("click", (event) => {
    const summary = event.target.closest?.("[data-picks] > summary");
    const row = summary && find("[data-row].is-at");
    if (row && !read().size && !everything()) find("[data-select]", row)?.click();
  }, true);

  // ---------- undo ----------
  document.addEventListener("submit", (event) => {
    const toast = event.target.closest?.("[data-toast]");
    if (!toast || !find("#results") || !window.htmx) return;
    event.preventDefault();
    window.htmx.ajax("POST", event.target.action, { source: event.target, event, target: "#results", swap: "outerHTML", values: { q: query() } })
      .catch(() => { /* shown by feedback.js */ });
  }, true);

  // ---------- the failure beside the list ----------
  const isWide = matchMedia("(min-width: 1200px)");
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-panel]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !isWide.matches || !window.htmx) return;
    event.preventDefault();
    window.htmx.ajax("GET", link.href, { target: "#detail", swap: "innerHTML show:none" });
  });
  // The row in the list shows the same state as the failure beside it.
  document.addEventListener("htmx:afterSettle", () => {
    const told = find("[data-row-now]");
    const now = told?.content.firstElementChild;
    const row = now && find(`[data-row="${now.dataset.row}"]`);
    told?.remove();
    if (!row) return;
    const isAt = row.contains(document.activeElement);
    now.className = row.className;
    row.replaceWith(now);
    if (isAt) find(".row-link", now).focus({ preventScroll: true });
    show();
  });
  const panel = () => find("[data-detail]");
  const closePanel = () => {
    const open = panel();
    if (!open?.firstChild) return false;
    open.replaceChildren();
    for (const row of all("[data-row].is-open")) row.classList.remove("is-open");
    return true;
  };
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target?.matches?.("[data-detail]")) {
      const close = document.createElement("button");
      close.type = "button";
      close.className = "quiet icon-only panel-close";
      close.title = "Close (Esc)";
      close.setAttribute("aria-label", "Close");
      close.dataset.closePanel = "";
      close.textContent = "×";
      event.detail.target.prepend(close);
      event.detail.target.scrollTop = 0;
    }
    show();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-close-panel]")) closePanel();
  });
  document.addEventListener("keydown", (event) => {
    // Ignores an Escape that has already closed a menu.
    const isMeant = event.key === "Escape" && !event.defaultPrevented;
    if (isMeant && !find("dialog[open]") && !event.target.matches?.("input, textarea, select")) closePanel();
  });
  // `e` opens the edit page of the focused row, if the user may act.
  document.addEventListener("keydown", (event) => {
    const link = event.key === "e" && find("[data-act-menu]") && find("#results .is-at a.row-link");
    if (!link || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || find("dialog[open]")) return;
    if (event.target.matches?.("input:not([type=checkbox]), textarea, select")) return;
    location.assign(new URL("edit/", link.href));
  });
  // A click on a search term selects it in the search field.
  document.addEventListener("click", (event) => {
    const term = event.target.closest?.("[data-edit]");
    const field = find("[data-search]");
    if (!term || !field || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (!field.value.includes(term.dataset.edit)) field.value = find("#results").dataset.formatted;
    const from = field.value.indexOf(term.dataset.edit);
    field.focus();
    field.setSelectionRange(Math.max(from, 0), from < 0 ? field.value.length : from + term.dataset.edit.length);
  });
  // Synchronizes the search field with the list.
  document.addEventListener("htmx:afterSettle", () => {
    const field = find("[data-search]");
    if (field && find("#results") && document.activeElement !== field) field.value = query();
  });

  // On this page the search replaces the list in place.
  const search = find("[data-search]")?.form;
  if (search && find("#results") && window.htmx) {
    for (const [name, value] of [["hx-get", search.action], ["hx-target", "#results"], ["hx-swap", "outerHTML"], ["hx-push-url", "true"]]) search.setAttribute(name, value);
    window.htmx.process(search);
  }

  show();
})();
