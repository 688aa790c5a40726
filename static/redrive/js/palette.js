// The palette (Ctrl K): where to go and what to do, found by a word. `redrive.js` fetches it, and holds what is pressed before it is here.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Pages stand in it; views and groups are asked for when it opens; acts are what the page has under a key, or offers (data-offer: in these words).
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
    // Before a word is typed Enter goes somewhere: no act is done by a slip.
    const first = words ? (option) => find("span", option).textContent.toLowerCase().startsWith(words) : (option) => option.dataset.url;
    choose(list.find(first) || list[0] || null);
  };
  const acts = new Map(); // key -> what it presses
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
  // Groups are found by the database, whichever of them: an answer that is late gives way to the next.
  let asking = 0;
  const askMore = () => {
    const words = encodeURIComponent(field.value.trim());
    if (more.dataset.more && window.htmx) window.htmx.ajax("GET", `${more.dataset.more}${words && `?q=${words}`}`, { source: more, target: more, swap: "innerHTML" });
  };
  // In the same moment: while nothing is chosen, Enter would search. What an arrow chose stays chosen.
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
