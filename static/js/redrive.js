// The behaviour that all pages share: live parts, keyboard, messages, theme. Pages work without any of it.
"use strict";
(() => {
  const LIVE_EVERY = 5000;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // ---------- live parts ----------
  // <div id=… data-live hx-get=… hx-trigger="redrive:tick" hx-swap="morph:outerHTML">: asked anew while the tab is
  // visible. A timer of our own, because htmx's trigger conditions need eval, which the policy forbids.
  const etags = new Map();
  let answeredAt = Date.now();
  let isLate = false;

  const tick = () => {
    if (document.hidden || !window.htmx) return;
    for (const part of all("[data-live]")) {
      if (!part.classList.contains("htmx-request")) window.htmx.trigger(part, "redrive:tick");
    }
  };
  setInterval(tick, LIVE_EVERY);
  document.addEventListener("visibilitychange", tick);

  const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
  const late = (now) => {
    const said = find("[data-lateness]");
    if (!said) return;
    if (now !== isLate) said.textContent = now ? `As of ${clock(answeredAt)} UTC, reconnecting` : "";
    isLate = now;
    document.documentElement.classList.toggle("is-late", now);
  };

  const isLivePart = (event) => event.detail.elt?.matches?.("[data-live]");
  document.addEventListener("htmx:configRequest", (event) => {
    const known = isLivePart(event) && etags.get(event.detail.path);
    if (known) event.detail.headers["If-None-Match"] = known;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!isLivePart(event)) return;
    const { xhr, pathInfo } = event.detail;
    if (xhr.status === 200 || xhr.status === 304) {
      answeredAt = Date.now();
      const etag = xhr.getResponseHeader("ETag");
      if (etag) etags.set(pathInfo.requestPath, etag);
      late(false);
    } else {
      late(true);
    }
  });
  // A menu that is open, or text that is being chosen, is not pulled away under the hand.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!isLivePart(event)) return;
    const chosen = document.getSelection();
    if (chosen && !chosen.isCollapsed && event.detail.elt.contains(chosen.anchorNode)) {
      event.detail.shouldSwap = false;
      etags.clear();
    }
  });
  // What a person opened stays open when its part is refreshed.
  if (window.Idiomorph) {
    window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.matches("details, dialog"));
    // What was fetched branch by branch stays, as long as it is of the same run.
    window.Idiomorph.defaults.callbacks.beforeNodeMorphed = (node, next) =>
      !(node.dataset?.still && node.dataset.still === next.dataset?.still);
  }

  // ---------- messages ----------
  const say = (text, level = "error") => {
    const toast = document.createElement("div");
    toast.className = `toast is-${level}`;
    toast.dataset.toast = "";
    const words = document.createElement("p");
    words.textContent = text;
    const close = document.createElement("button");
    close.type = "button";
    close.className = "quiet";
    close.dataset.dismiss = "";
    close.textContent = "Dismiss";
    toast.append(words, close);
    find("#messages")?.append(toast);
  };
  document.addEventListener("htmx:responseError", (event) => {
    if (isLivePart(event)) return;
    const { xhr } = event.detail;
    const isSentence = (xhr.getResponseHeader("Content-Type") || "").startsWith("text/plain");
    say(isSentence ? xhr.responseText : `The desk answered ${xhr.status}. Look whether it happened before you repeat it.`);
  });
  document.addEventListener("htmx:sendError", (event) => {
    if (!isLivePart(event)) say("The desk cannot be reached. Whether it happened is not known: look before you repeat it.");
  });
  document.addEventListener("htmx:timeout", (event) => {
    if (!isLivePart(event)) say("The desk did not answer within 20 s. Look whether it happened before you repeat it.");
  });
  document.addEventListener("click", (event) => {
    event.target.closest?.("[data-dismiss]")?.closest("[data-toast]")?.remove();
  });

  // ---------- theme ----------
  const isDark = () => {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  find("[data-theme-switch]")?.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("redrive-theme", theme); } catch { /* remembered for this page only */ }
    document.dispatchEvent(new CustomEvent("redrive:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.dispatchEvent(new CustomEvent("redrive:theme")));

  // ---------- keyboard ----------
  // A table takes part with data-rows on the element around its rows; each row has data-row (its address).
  // A row's box to select is [data-select]; r, d, e press what carries data-key in the row, else on the page.
  const help = find("#keyboard");
  const palette = find("#palette");
  const isTyping = (element) => element.matches?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");
  const rows = () => all("[data-rows] [data-row]");
  let at = -1;
  let atAddress = null;
  const mark = (row) => {
    for (const other of rows()) other.classList.toggle("is-at", other === row);
    row?.scrollIntoView({ block: "nearest" });
    row?.querySelector("a[href], [data-select]")?.focus({ preventScroll: true });
  };
  const current = () => rows().find((row) => row.dataset.row === atAddress) || null;
  const move = (by) => {
    const list = rows();
    if (!list.length) return;
    const from = list.indexOf(current());
    at = Math.max(0, Math.min(list.length - 1, (from < 0 ? (by > 0 ? -1 : list.length) : from) + by));
    atAddress = list[at].dataset.row;
    mark(list[at]);
  };
  document.addEventListener("htmx:afterSettle", () => {
    const row = current();
    if (row) for (const other of rows()) other.classList.toggle("is-at", other === row);
  });
  const press = (key) => {
    const target = (current() && find(`[data-key="${key}"]`, current())) || find(`main [data-key="${key}"]:not([data-row] *)`);
    if (!target || target.disabled) return false;
    target.focus();
    target.click();
    return true;
  };

  let going = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) {
      event.preventDefault();
      if (palette.open) palette.close(); else { palette.showModal(); filterPalette(); }
      return;
    }
    if (event.key === "Escape" && isTyping(event.target) && !event.target.closest("dialog")) {
      event.target.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || find("dialog[open]")) return;
    if (Date.now() - going < 1500) {
      going = 0;
      const place = find(`[data-go="${CSS.escape(event.key)}"]`);
      if (place) { event.preventDefault(); place.click(); }
      return;
    }
    const acts = {
      "/": () => { const field = find("[data-search]"); field?.focus(); field?.select(); return true; },
      "?": () => { help?.showModal(); return true; },
      g: () => { going = Date.now(); return true; },
      j: () => { move(1); return true; },
      k: () => { move(-1); return true; },
      x: () => { const box = current() && find("[data-select]", current()); box?.click(); return Boolean(box); },
      r: () => press("r"),
      d: () => press("d"),
      e: () => press("e"),
      Enter: () => {
        if (event.target.matches("a, button, summary")) return false;
        const link = current() && find("a[href]", current());
        link?.click();
        return Boolean(link);
      },
    };
    if (acts[event.key]?.()) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-help]")) help?.showModal();
    if (event.target === help || event.target === palette) event.target.close(); // outside the sheet
  });

  // ---------- palette ----------
  const field = palette && find("input", palette);
  const options = () => all("[role=option]:not([hidden])", palette);
  const choose = (option) => {
    for (const other of all("[role=option]", palette)) other.setAttribute("aria-selected", String(other === option));
    if (option) field.setAttribute("aria-activedescendant", option.id); else field.removeAttribute("aria-activedescendant");
  };
  function filterPalette() {
    const words = field.value.trim().toLowerCase();
    for (const option of all("[role=option]", palette)) {
      option.hidden = Boolean(words) && !find("span", option).textContent.toLowerCase().startsWith(words);
    }
    choose(options()[0] || null);
  }
  field?.addEventListener("input", filterPalette);
  field?.addEventListener("keydown", (event) => {
    const list = options();
    const chosen = list.findIndex((option) => option.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.length) choose(list[(chosen + (event.key === "ArrowDown" ? 1 : list.length - 1)) % list.length]);
    } else if (event.key === "Enter" && list[chosen]) {
      event.preventDefault();
      location.assign(list[chosen].dataset.url);
    }
  });
  palette?.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.assign(option.dataset.url);
  });
})();
