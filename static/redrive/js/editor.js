// Inputs that know that they are refused, and a button that only pages without scripts need. Pages work without it.
"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  const ready = () => { for (const button of all("[data-recalculate]")) button.hidden = true; };
  ready();
  document.addEventListener("htmx:afterSettle", ready);

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
