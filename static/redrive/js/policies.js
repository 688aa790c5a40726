// Policy editor: adds rows for error classes. The page works without this script.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);

  const another = find("[data-another]");
  if (another) another.hidden = false;
  another?.addEventListener("click", () => {
    const rows = find("[data-classes]");
    const row = rows.lastElementChild.cloneNode(true);
    for (const field of row.querySelectorAll("input")) field.value = "";
    rows.append(row);
    find("input", row).focus();
  });
})();
