// Editor: marks invalid inputs, and hides a button needed only without scripts. Pages work without this script.
"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const slotOf = (field) => all("[data-refusals]").find((one) => (field.getAttribute("aria-describedby") || "").split(" ").includes(one.id));

  const ready = () => { for (const button of all("[data-recalculate]")) button.hidden = true; };
  ready();
  document.addEventListener("htmx:afterSettle", ready);

  // An empty required field is invalid only once it has lost focus.
  const left = new Set();
  const need = (field) => {
    const slot = slotOf(field);
    const own = slot?.querySelector("[data-is-needed]");
    if (field.value.trim() || !left.has(field.id)) {
      own?.remove();
      if (own && !slot.childElementCount) field.removeAttribute("aria-invalid");
    } else if (slot && !slot.childElementCount) {
      const text = document.createElement("p");
      text.className = "refusal";
      text.dataset.isNeeded = "";
      text.textContent = field.dataset.needed;
      slot.append(text);
      field.setAttribute("aria-invalid", "true");
    }
  };
  document.addEventListener("focusout", (event) => {
    if (!event.target.matches?.("[data-needed]")) return;
    left.add(event.target.id);
    need(event.target);
  });
  document.addEventListener("input", (event) => { if (event.target.matches?.("[data-needed]")) need(event.target); });

  // Errors are swapped beside the input, which is not replaced because it may have focus.
  document.addEventListener("htmx:afterSettle", () => {
    for (const said of all("[data-refusals]")) {
      for (const field of all(`[aria-describedby~="${said.id}"]`)) {
        if (said.childElementCount) field.setAttribute("aria-invalid", "true");
        else field.removeAttribute("aria-invalid");
      }
      if (said.childElementCount) said.closest("details")?.setAttribute("open", "");
    }
    for (const field of all("[data-needed]")) need(field);
  });
})();
