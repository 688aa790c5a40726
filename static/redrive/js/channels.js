// A secret that is shown once: copied by a button, and not asked for again when the page is loaded anew.
"use strict";
(() => {
  const shown = document.querySelector("[data-now-at]");
  if (shown) history.replaceState(null, "", shown.dataset.nowAt);
  for (const button of document.querySelectorAll("[data-copy-text]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const words = button.querySelector("span");
      await navigator.clipboard.writeText(document.querySelector(button.dataset.copyText).textContent);
      words.textContent = "Copied";
      setTimeout(() => { words.textContent = "Copy"; }, 1500);
    });
  }
})();
