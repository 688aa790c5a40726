// The editor of a policy: one more row for an error, and inputs that know that they are refused. Pages work without it.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  const ready = () => { for (const button of all("[data-recalculate]")) button.hidden = true; };
  ready();
  document.addEventListener("htmx:afterSettle", ready);
  const another = find("[data-another]");
  if (another) another.hidden = false;
  another?.addEventListener("click", () => {
    const rows = find("[data-classes]");
    const row = rows.lastElementChild.cloneNode(true);
    for (const field of all("input", row)) field.value = "";
    rows.append(row);
    find("input", row).focus();
  });

  // What is refused comes beside its input, which is not drawn again: the hand may be in it.
  document.addEventListener("htmx:afterSettle", () => {
    for (const said of all("[data-refusals]")) {
      for (const field of all(`[aria-describedby~="${said.id}"]`)) {
        if (said.childElementCount) field.setAttribute("aria-invalid", "true");
        else field.removeAttribute("aria-invalid");
      }
      if (said.childElementCount) said.closest("details")?.setAttribute("open", "");
    }
  });
})();
