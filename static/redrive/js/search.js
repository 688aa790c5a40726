// Search field: completion while typing, recent searches, and help on the language. Loaded when the field is first used
// (redrive.js); without this script it is a plain form. Enter submits, unless an option was selected by arrow key.
"use strict";
(() => {
  const field = document.querySelector("[data-search]");
  const form = field?.form;
  if (!form) return;
  const KEY = "redrive-searches";
  const MOST = 10;
  const DELAY = 90;

  const list = document.createElement("ul");
  list.id = "search-options";
  list.className = "search-options";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Search suggestions");
  list.hidden = true;
  const said = document.createElement("p");
  said.className = "unseen-label";
  said.setAttribute("role", "status");
  form.append(list, said);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id, "aria-haspopup": "listbox" })) {
    field.setAttribute(name, value);
  }

  // ---------- recent searches ----------
  // The latest is stored by redrive.js, which also handles searches submitted before this script was loaded.
  const before = () => {
    try {
      const listed = JSON.parse(localStorage.getItem(KEY) || "[]");
      const last = localStorage.getItem("redrive-searched")?.trim();
      const kept = (Array.isArray(listed) ? listed : []).filter((text) => typeof text === "string" && text !== last);
      if (last) {
        kept.unshift(last);
        localStorage.setItem(KEY, JSON.stringify(kept.slice(0, MOST)));
      }
      return kept.slice(0, MOST);
    } catch { return []; }
  };
  form.addEventListener("submit", () => { close(); before(); }, true);

  // ---------- the list ----------
  const options = () => [...list.querySelectorAll("[role=option]")];
  const chosen = () => list.querySelector('[aria-selected="true"]');
  const choose = (option) => {
    for (const other of options()) other.setAttribute("aria-selected", String(other === option));
    if (option) { field.setAttribute("aria-activedescendant", option.id); option.scrollIntoView({ block: "nearest" }); }
    else field.removeAttribute("aria-activedescendant");
  };
  let asked = null;
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    asked?.abort();
    list.hidden = true;
    field.setAttribute("aria-expanded", "false");
    choose(null);
  };
  const show = (items, start, end, whole = false, kept = null) => {
    list.replaceChildren(...items);
    Object.assign(list.dataset, { start, end, whole: whole ? "1" : "" });
    list.hidden = !items.length;
    field.setAttribute("aria-expanded", String(items.length > 0));
    said.textContent = items.length ? `${items.length} suggestion${items.length === 1 ? "" : "s"}` : "";
    choose(items.find((item) => item.dataset.text === kept) ?? null);
  };
  const showBefore = () => show(before().map((text, n) => {
    const item = document.createElement("li");
    item.id = `searched-${n}`;
    item.dataset.text = text;
    item.setAttribute("role", "option");
    const words = document.createElement("span");
    words.className = "mono clip";
    words.textContent = text;
    const kind = document.createElement("span");
    kind.className = "kind";
    kind.textContent = "searched";
    item.append(words, kind);
    return item;
  }), 0, 0, true);

  // Positions are counted in code points on both sides; JavaScript counts some characters as two.
  const characters = () => [...field.value];
  const caret = () => [...field.value.slice(0, field.selectionStart)].length;
  const ask = async () => {
    if (!form.dataset.complete) return;
    asked?.abort();
    asked = new AbortController();
    const text = field.value;
    const query = new URLSearchParams({ q: text, at: caret() });
    try {
      const answer = await fetch(`${form.dataset.complete}?${query}`, { signal: asked.signal, headers: { "HX-Request": "true" } });
      if (!answer.ok || field.value !== text || document.activeElement !== field) return;
      const held = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-completions]");
      // An option selected by arrow key meanwhile stays selected.
      if (held && field.value === text) {
        show([...held.children].map((item) => document.adoptNode(item)), held.dataset.start, held.dataset.end, false, chosen()?.dataset.text);
      }
    } catch { /* outdated, or the desk is unreachable: searching still works */ }
  };
  // Until the answer arrives only matching options are shown, so that fast typing does not select an outdated one.
  const narrow = () => {
    const from = Number(list.dataset.start);
    const word = characters().slice(from, caret()).join("").toLowerCase();
    show(list.dataset.whole ? [] : options().filter((option) => option.dataset.text.toLowerCase().includes(word)), from, caret());
  };
  const soon = () => {
    clearTimeout(timer);
    if (!list.hidden) narrow();
    if (field.value.trim()) timer = setTimeout(ask, DELAY); else showBefore();
  };
  const take = (option) => {
    const text = option.dataset.text;
    if (list.dataset.whole) {
      field.value = text;
      close();
      form.requestSubmit();
      return;
    }
    const all = characters();
    const head = all.slice(0, Number(list.dataset.start)).join("") + text;
    const tail = all.slice(Number(list.dataset.end)).join("");
    const gap = text.endsWith(":") || text.endsWith(".") || tail.startsWith(" ") ? "" : " ";
    field.value = head + gap + tail;
    const at = head.length + (gap || tail.startsWith(" ") ? 1 : 0);
    field.setSelectionRange(at, at);
    close();
    if (!gap && !tail) ask(); // a qualifier: complete its values next
  };

  const typed = () => {
    if (field.value !== "?") return soon();
    field.value = "";
    close();
    help();
  };
  field.addEventListener("input", typed);
  field.addEventListener("focus", () => { if (!field.value) showBefore(); });
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    const items = options();
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !event.altKey) {
      event.preventDefault();
      if (list.hidden) { if (field.value.trim()) ask(); else showBefore(); return; }
      const from = items.indexOf(chosen());
      const next = event.key === "ArrowDown" ? from + 1 : from < 0 ? items.length - 1 : from - 1;
      choose(items[next] ?? null); // beyond either end no option is selected, and Enter searches
    } else if ((event.key === "Enter" || event.key === "Tab") && !list.hidden && chosen()) {
      event.preventDefault();
      take(chosen());
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      event.stopPropagation();
      close();
    }
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps its focus
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) take(option);
  });

  // ---------- help on the language ----------
  const link = document.querySelector("[data-search-help]");
  let sheet = null;
  async function help() {
    if (!sheet) {
      try {
        const answer = await fetch(link.href, { headers: { "HX-Request": "true" } });
        if (!answer.ok) throw new Error(String(answer.status));
        const held = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#search-help");
        sheet = document.createElement("dialog");
        sheet.className = "sheet is-wide";
        sheet.setAttribute("aria-label", "Search syntax");
        const top = document.createElement("form");
        top.method = "dialog";
        const title = document.createElement("h2");
        title.textContent = "Search syntax";
        const away = document.createElement("button");
        away.className = "quiet";
        away.textContent = "Close";
        top.append(title, away);
        sheet.append(top, document.adoptNode(held));
        sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });
        sheet.addEventListener("close", () => field.focus());
        document.body.append(sheet);
      } catch {
        location.assign(link.href);
        return;
      }
    }
    sheet.showModal();
  }
  link?.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    help();
  });

  // The script was loaded because the field is in use: text may have been typed meanwhile.
  if (document.activeElement === field) { if (field.value && field.value !== field.defaultValue) typed(); else if (!field.value) showBefore(); }
})();
