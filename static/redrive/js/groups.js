// List of groups: acts on the selection; after a refusal the typed text stays. Pages work without this script.
"use strict";
(() => {
  const SENT = "redrive-groups-sent";
  const MOST = 1000;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const form = find("[data-group-selection]");
  if (!form || !find("[data-bar]", form)) return;
  const count = (n) => n.toLocaleString("en");
  const { keep, show } = window.redriveSelection({
    list: () => form,
    key: "redrive-groups",
    field: "groups",
    most: MOST,
    said: (chosen, others) => chosen
      ? `${count(chosen)} selected${others ? `, ${count(others)} on other pages` : ""}${chosen >= MOST ? " (maximum)" : ""}`
      : "Select groups for actions.",
    shown: (chosen) => find("[data-bar]", form).classList.toggle("is-active", chosen > 0),
  });

  form.addEventListener("submit", () => {
    const typed = all("input:not([type=hidden], [type=checkbox]), textarea, select", form).map((field) => [field.id, field.value]);
    try { sessionStorage.setItem(SENT, JSON.stringify(typed)); } catch { /* the rows stay selected */ }
  });
  // On the next page, changed groups are no longer selected, and refused ones keep the typed text.
  const settle = () => {
    let typed = null;
    try {
      typed = JSON.parse(sessionStorage.getItem(SENT) || "null");
      sessionStorage.removeItem(SENT);
    } catch { /* nothing was sent */ }
    if (!Array.isArray(typed)) return;
    if (find("[data-toast].is-success")) keep([]);
    else for (const [id, value] of typed) { const field = id && document.getElementById(id); if (field) field.value = value; }
  };
  settle();
  show();
})();
