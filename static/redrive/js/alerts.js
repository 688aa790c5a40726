// Alert page: `a` acknowledges. All other keys are those of every page.
"use strict";
(() => {
  let went = 0; // time of the last `g`: the next letter selects a page
  document.addEventListener("keydown", (event) => {
    const isText = event.target.matches?.("input:not([type=checkbox], [type=radio]), textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || isText || document.querySelector("dialog[open]")) return;
    const isGoing = Date.now() - went < 1500;
    went = event.key === "g" && !isGoing ? Date.now() : 0;
    if (event.key !== "a" || isGoing || event.defaultPrevented || event.repeat) return;
    const button = document.querySelector("main [data-key=a]");
    if (!button) return;
    event.preventDefault();
    button.click();
  });
})();
