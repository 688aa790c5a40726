// Button that copies a secret shown once; the secret is not requested again on reload.
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
