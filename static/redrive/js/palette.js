// Command palette (Ctrl K): pages and acts found by a word. `redrive.js` loads this script and replays the keys pressed
// meanwhile.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Pages are included in the page; views and groups are loaded when the palette opens; acts are the page's keyboard shortcuts
  // and its offers (data-offer: label).
  const palette = find("#palette");
  const field = find("input", palette);
  const more = find("[data-more]", palette);
  const searchFor = find("[data-search-for]", palette);
  const optionsOf = (kind) => all(`[role=option]${kind}`, palette);
  const choose = (option) => {
    for (const other of optionsOf("")) other.setAttribute("aria-selected", String(other === option));
    option?.scrollIntoView({ block: "nearest" });
    if (option) field.setAttribute("aria-activedescendant", option.id); else field.removeAttribute("aria-activedescendant");
  };
  const filterPalette = () => {
    const words = field.value.trim().toLowerCase();
    for (const option of optionsOf(":not([data-search-for])")) {
      const text = `${find("span", option).textContent} ${option.dataset.words ?? ""}`.toLowerCase();
      option.hidden = !words.split(/\s+/).every((word) => text.includes(word.replace(/^:+|:+$/g, "")));
    }
    searchFor.hidden = !words;
    find("span", searchFor).textContent = `Search failures: ${field.value.trim()}`;
    const list = optionsOf(":not([hidden])");
    // Without a query, Enter navigates, so that no act is triggered by accident.
    const first = words ? (option) => find("span", option).textContent.toLowerCase().startsWith(words) : (option) => option.dataset.url;
    choose(list.find(first) || list[0] || null);
  };
  const acts = new Map(); // key -> element to click
  const here = () => {
    acts.clear();
    for (const act of all("main :is([data-key], [data-offer]):not([data-row] *)")) {
      const key = act.dataset.key || `act-${acts.size}`;
      if (!act.disabled && act.getAttribute("aria-disabled") !== "true" && act.getClientRects().length && !acts.has(key)) acts.set(key, act);
    }
    find("[data-here]", palette).replaceChildren(...[...acts].map(([key, act]) => {
      const option = document.createElement("li");
      const [words, hint] = [document.createElement("span"), document.createElement("kbd")];
      option.setAttribute("role", "option");
      option.id = `palette-act-${key}`;
      option.dataset.act = key;
      words.textContent = (act.dataset.offer || act.textContent).trim().replace(/\s+/g, " ");
      hint.textContent = key;
      option.append(words);
      if (act.dataset.key) option.append(hint);
      return option;
    }));
  };
  let pressed = null;
  document.addEventListener("redrive:palette", (event) => {
    pressed = event.detail.pressed;
    here();
    filterPalette();
    const typed = field.value;
    const type = (words) => { if (field.value !== words) { field.value = words; filterPalette(); } };
    for (const { key, words } of event.detail.held) {
      type(words);
      field.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
      if (key === "Enter") return;
    }
    type(typed);
    askMore();
  });
  // Groups are found by the server; a new request replaces a late one.
  let asking = 0;
  const askMore = () => {
    const words = encodeURIComponent(field.value.trim());
    if (more.dataset.more && window.htmx) window.htmx.ajax("GET", `${more.dataset.more}${words && `?q=${words}`}`, { source: more, target: more, swap: "innerHTML" });
  };
  // Immediately, because without a selected option Enter would search. An option selected by arrow key stays selected.
  let byArrow = null;
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target !== more || !palette.open) return;
    filterPalette();
    const again = byArrow && optionsOf(":not([hidden])").find((option) => find("span", option).textContent === byArrow);
    if (again) choose(again);
  });
  const follow = (option) => {
    if (option.dataset.url) location.assign(option.dataset.url);
    else if (option.dataset.act) { palette.close(); pressed(acts.get(option.dataset.act)); }
    else field.form.requestSubmit();
  };
  field.addEventListener("input", () => {
    byArrow = null;
    filterPalette();
    clearTimeout(asking);
    asking = setTimeout(askMore, 150);
  });
  field.addEventListener("keydown", (event) => {
    const list = optionsOf(":not([hidden])");
    const chosen = list.findIndex((option) => option.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!list.length) return;
      const next = list[(chosen + (event.key === "ArrowDown" ? 1 : list.length - 1)) % list.length];
      choose(next);
      byArrow = find("span", next).textContent;
    } else if (event.key === "Enter" && list[chosen]) {
      event.preventDefault();
      follow(list[chosen]);
    }
  });
  palette.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) follow(option);
  });
})();
