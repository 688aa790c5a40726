// Failure page: the selected attempt, paths to copy, attempts to compare. The page works without this script.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const ready = () => { for (const button of all("[data-without-script]")) button.hidden = true; };

  // Marks the attempt whose traceback is shown.
  document.addEventListener("htmx:afterSwap", (event) => {
    const link = event.detail.requestConfig?.elt;
    if (!link?.matches?.("[data-chooses]")) return;
    for (const other of all("[data-chooses][aria-current]")) {
      other.removeAttribute("aria-current");
      other.closest(".attempt").classList.remove("is-chosen");
    }
    link.setAttribute("aria-current", "true");
    link.closest(".attempt").classList.add("is-chosen");
    const told = find("#told");
    if (told && told.getBoundingClientRect().top > innerHeight * 0.8) told.scrollIntoView({ block: "start" });
  });

  // A click on the name of a value copies its path, which is also a search term.
  document.addEventListener("click", async (event) => {
    const key = event.target.closest?.(".tree .key[data-path]");
    if (!key || key.closest("summary") || !navigator.clipboard) return;
    await navigator.clipboard.writeText(key.dataset.path);
    const said = find("#messages");
    if (!said) return;
    for (const old of all("[data-copied]", said)) old.remove();
    const toast = document.createElement("div");
    toast.className = "toast is-success";
    toast.dataset.copied = "";
    const words = document.createElement("p");
    words.textContent = `Copied ${key.dataset.path}`;
    toast.append(words);
    said.append(toast);
    setTimeout(() => toast.remove(), 2500);
  });

  // The act removed the focused button, so the focus moves to the title, which shows the new state.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.requestConfig?.verb !== "post" || event.detail.target?.id !== "failure") return;
    if (document.activeElement && document.activeElement !== document.body) return;
    const title = find("#failure h1");
    title?.setAttribute("tabindex", "-1");
    title?.focus();
  });

  document.addEventListener("htmx:afterSettle", ready);
  ready();
})();
