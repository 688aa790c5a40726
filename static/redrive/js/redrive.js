// Behaviour shared by all pages: live parts, keyboard, messages, theme. Pages work without this script.
"use strict";
(() => {
  const LIVE_EVERY = 5000;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Loads a script that is not needed for the first view; after a failure it is requested again.
  const scripts = new Map();
  const load = (src) => {
    if (!scripts.has(src)) scripts.set(src, new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = src;
      script.onload = done;
      script.onerror = () => { scripts.delete(src); failed(new Error("the page's own files cannot be reached")); };
      document.head.append(script);
    }));
    return scripts.get(src);
  };

  // ---------- acts ----------
  // A form is not submitted again before its answer. feedback.js shows that it is running.
  const acting = new Map(); // form -> timer that releases it if no htmx event does
  const emit = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));
  const formOf = (element) => element.form || element.closest("form") || element;
  const isPress = ({ verb, triggeringEvent }) => verb !== "get" && /^(submit|click)$/.test(triggeringEvent?.type);
  const begin = (form, button, sender) => { // `sender`: htmx's element
    // Later than the timeout in feedback.js, which also shows a message; needed in case that script was not loaded.
    acting.set(form, sender ? 0 : setTimeout(() => end(form), 20_500));
    emit("redrive:acting", { form, button, sender });
  };
  const end = (form) => {
    clearTimeout(acting.get(form));
    if (acting.delete(form)) emit("redrive:acted", form);
  };
  document.addEventListener("redrive:release", ({ detail }) => end(detail));
  document.addEventListener("submit", (event) => {
    if (!acting.has(event.target)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  document.addEventListener("htmx:confirm", (event) => {
    const { elt, triggeringEvent: press } = event.detail;
    if (!isPress(event.detail)) return;
    if (acting.has(formOf(elt))) event.preventDefault();
    else begin(formOf(elt), press.submitter || elt, elt);
  });
  document.addEventListener("htmx:validation:halted", ({ target }) => end(formOf(target)));
  document.addEventListener("htmx:afterRequest", ({ detail: { requestConfig, xhr } }) => {
    // A page that is being redirected stays locked.
    if (isPress(requestConfig) && !xhr.getResponseHeader("HX-Redirect")) end(formOf(requestConfig.elt));
  });

  // ---------- live parts ----------
  // <div id=… data-live hx-get=… hx-trigger="redrive:tick" hx-swap="morph:outerHTML">: requested repeatedly while the tab is
  // visible. The timer is our own because htmx's trigger conditions need eval, which the content security policy forbids.
  const etags = new Map();

  const tick = () => {
    if (document.hidden || !window.htmx) return;
    feedback();
    if (!acting.size) for (const part of all("[data-live]:not(.htmx-request)")) window.htmx.trigger(part, "redrive:tick");
  };
  // One timer per page. A page in the back/forward cache pauses, and requests its parts again when shown, because the answers
  // of running requests never arrive.
  let timer = 0;
  const start = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { tick(); start(); }, find("[data-live=fast]") ? 1000 : LIVE_EVERY);
  };
  addEventListener("pagehide", () => clearTimeout(timer));
  addEventListener("pageshow", (event) => {
    start();
    if (!event.persisted) return;
    [...acting.keys()].forEach(end);
    for (const part of all("[data-live].htmx-request")) {
      window.htmx?.trigger(part, "htmx:abort");
      part.classList.remove("htmx-request");
    }
    tick();
  });
  document.addEventListener("visibilitychange", tick);

  const { zone } = document.documentElement.dataset;
  const isLivePart = (event) => event.detail.elt?.matches?.("[data-live]");
  document.addEventListener("htmx:configRequest", (event) => {
    const known = isLivePart(event) && etags.get(event.detail.path);
    if (known) event.detail.headers["If-None-Match"] = known;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!isLivePart(event)) return;
    const { xhr, pathInfo } = event.detail;
    const etag = (xhr.status === 200 || xhr.status === 304) && xhr.getResponseHeader("ETag");
    if (etag) etags.set(pathInfo.requestPath, etag);
  });
  // No swap while a form is being submitted, or text in the part is selected.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.requestConfig.elt.matches("[data-live]")) return; // an act, perhaps into a live part
    const chosen = document.getSelection();
    if (acting.size || (chosen && !chosen.isCollapsed && event.detail.elt.contains(chosen.anchorNode))) {
      event.detail.shouldSwap = false;
      etags.clear();
    }
  });
  // Typed text is preserved.
  const isTyped = (node) => node.matches?.("input:not([type=hidden]), textarea") && node.value !== node.defaultValue;
  document.addEventListener("htmx:confirm", (event) => {
    if (event.defaultPrevented || window.Idiomorph || !event.detail.elt.closest("[hx-swap]")?.getAttribute("hx-swap").startsWith("morph")) return;
    event.preventDefault();
    load(find("meta[name=redrive-morph]").content).then(prepareMorph).then(() => event.detail.issueRequest(true), () => {
      emit("redrive:away", isPress(event.detail));
      end(formOf(event.detail.elt));
    });
  });
  // Elements opened by the user stay open when their part is refreshed.
  function prepareMorph() {
    window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.matches("details, dialog")) && !(name === "value" && isTyped(node));
    // Branches loaded on demand stay while they belong to the same run.
    window.Idiomorph.defaults.callbacks.beforeNodeMorphed = (node, next) => {
      // A refreshed part does not have the drawn parts of a chart: the chart stays, and gets the new values.
      if (node.dataset?.drawn !== undefined && next.dataset?.chart) {
        node.dataset.chart = next.dataset.chart;
        node.setAttribute("aria-label", next.getAttribute("aria-label"));
        return false;
      }
      if (!node.dataset?.still) return true;
      const isSame = node.dataset.still === next.dataset?.still;
      // A part loaded later stays until it has been loaded again.
      const again = !isSame && next.matches?.("[hx-trigger=load]") && next.getAttribute("hx-get");
      if (again) window.htmx.ajax("GET", again, { target: node, swap: "outerHTML" });
      return !isSame && !again;
    };
  }

  // ---------- messages ----------
  const messages = find("#messages");
  // Errors, connection loss and progress of acts (feedback.js) are not needed for the first view.
  const feedback = () => { if (messages) load(messages.dataset.script).catch(() => { /* requested again at the next tick */ }); };
  feedback();
  // At most three, latest last. The page gets bottom padding of their height, and focused or primary elements scroll out
  // from under them.
  const makeRoom = () => {
    for (const old of all("[data-toast]").slice(0, -3)) old.remove();
    const over = messages.getBoundingClientRect();
    document.documentElement.style.setProperty("--said", `${over.height}px`);
    const act = over.height && all("main :is(:focus, .primary)").map((one) => one.getBoundingClientRect())
      .find(({ top, bottom, right }) => top < innerHeight && bottom > over.top && right > over.left);
    if (act) scrollBy(0, act.bottom - over.top + 8);
  };
  if (messages) {
    new MutationObserver((changes) => {
      const come = changes.flatMap(({ addedNodes }) => [...addedNodes]);
      // A success also removes earlier errors.
      const isDone = come.some((node) => node.matches?.(".is-success") || node.querySelector?.(".is-success"));
      if (come.length) for (const old of all(isDone ? "[data-toast]" : "[data-toast]:not(.is-error, :has(form))")) if (!come.some((node) => node.contains(old))) old.remove();
      makeRoom();
    }).observe(messages, { childList: true });
    makeRoom();
  }

  // ---------- search ----------
  // Completion is loaded when the field is first used; most page views never need it.
  const searched = find("[data-search]");
  const completed = () => {
    load(searched.dataset.script).catch(() => { /* searching still works */ });
  };
  searched?.addEventListener("focus", completed);
  if (searched && document.activeElement === searched) completed();
  // Stored here, because a search may be submitted before completion is loaded. Other users of this browser do not see it.
  document.addEventListener("submit", ({ target }) => {
    try {
      if (target === searched?.form) localStorage.setItem("redrive-searched", searched.value);
      else if (/\/logout\/$/.test(target.action)) for (const key of ["redrive-searches", "redrive-searched"]) localStorage.removeItem(key);
    } catch { /* nothing is stored */ }
  }, true);

  // ---------- theme ----------
  const isDark = () => {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  for (const one of all("[data-theme-switch]")) one.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("redrive-theme", theme); } catch { /* applies to this page only */ }
    document.dispatchEvent(new CustomEvent("redrive:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.dispatchEvent(new CustomEvent("redrive:theme")));

  // ---------- time zone ----------
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const one of all("[data-zone-switch]")) {
    one.hidden = zone === "UTC" && here === "UTC";
    one.addEventListener("click", () => {
      document.cookie = `redrive-time-zone=${zone === "UTC" ? here : ""};path=/;max-age=31536000;samesite=lax`;
      location.reload();
    });
  }
  // Another tab may have switched the zone: this page keeps displaying and sending its own.
  document.addEventListener("htmx:configRequest", (event) => { event.detail.headers["X-Time-Zone"] = zone; });
  document.addEventListener("formdata", (event) => {
    if (event.target.querySelector("[type=datetime-local], [name=due_at]")) event.formData.set("time_zone", zone);
  });

  // ---------- keyboard ----------
  // A table takes part with data-rows on the element around its rows, and data-row (URL) on each row. The checkbox of a row is
  // [data-select]; r, d, e click the element with that data-key in the row, or else on the page.
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
    return Boolean(target) && !target.disabled && pressed(target);
  };
  // The first field of a menu, otherwise the first link or button that destroys nothing.
  const entryOf = (menu) => find("input:not([type=hidden]), textarea, select", menu) || find("a[href], button:not(.danger, [hidden], :disabled)", menu);
  const pressed = (target) => {
    target.focus();
    target.click();
    const menu = target.matches("summary") && target.closest("details.menu[open]");
    if (menu) entryOf(menu)?.focus();
    return true;
  };

  // ---------- undo ----------
  // Undoes the act in the message, otherwise the user's latest act, after confirmation unless it affected one job or one group.
  const undo = find("#undo");
  const takeBack = () => {
    const offered = all("[data-toast] form button").pop();
    if (offered) offered.click();
    else if (undo && window.htmx) window.htmx.ajax("GET", `${undo.dataset.undo}?back=${encodeURIComponent(location.pathname + location.search)}`, { target: undo, swap: "innerHTML" });
    return Boolean(offered || undo);
  };
  document.addEventListener("htmx:afterSettle", (event) => {
    if (!undo || event.detail.target !== undo) return;
    const small = find("[data-at-once]", undo);
    if (small) small.requestSubmit(); else undo.showModal();
  });
  undo?.addEventListener("click", (event) => {
    const leaves = event.target.closest("[data-close-undo]");
    if (leaves) event.preventDefault();
    // A click outside the dialog closes it.
    if (leaves || event.target === undo) undo.close();
  });

  // ---------- focus after an act ----------
  // A form returns a page. Focus moves to the refused field, otherwise to the row or button of the act, otherwise to the title,
  // so that keyboard users do not restart at the top.
  const STOOD = "redrive-stood";
  const summaryOf = (element) => { const menu = element?.closest("details.menu"); return menu && find("summary", menu); };
  const picked = () => rows().findIndex((row) => find("[data-select]:checked", row));
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post" || /\/log(in|out)\/$/.test(form.action)) return;
    begin(form, event.submitter);
    const stood = { at: Date.now(), action: form.getAttribute("action"), menu: summaryOf(event.submitter)?.textContent, row: picked() };
    try { sessionStorage.setItem(STOOD, JSON.stringify(stood)); } catch { /* focus stays at the top of the page */ }
  });
  const stand = () => {
    let stood = null;
    try {
      stood = JSON.parse(sessionStorage.getItem(STOOD) || "null");
      sessionStorage.removeItem(STOOD);
    } catch { /* nothing was sent */ }
    const refused = find("main :is([aria-invalid=true], [data-refused])");
    if (find("[autofocus]") || (!refused && !(Date.now() - stood?.at < 30000))) return;
    const row = stood?.row >= 0 ? rows()[Math.min(stood.row, rows().length - 1)] : null;
    const form = all("main form[action]").find((one) => one.getAttribute("action") === stood?.action);
    const title = find("main h1");
    const place = refused || (row && find("a[href]", row)) || all("main details.menu > summary").find((one) => one.textContent === stood?.menu)
      || summaryOf(form) || (form && find("button:not([hidden], :disabled)", form)) || title;
    if (place === title) title?.setAttribute("tabindex", "-1");
    place?.focus({ preventScroll: place === title });
  };
  stand();

  // A menu closes on a click outside and on Escape, which then closes nothing else.
  document.addEventListener("click", (event) => {
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && find("details.menu[open]");
    if (!menu) return;
    event.preventDefault();
    menu.open = false;
    find("summary", menu).focus();
  });

  // An opened menu takes the focus, unless it has it already.
  document.addEventListener("toggle", (event) => {
    const menu = event.target;
    if (!menu.matches?.("details.menu") || !menu.open || menu.contains(find("details.menu :focus:not(summary)"))) return;
    entryOf(menu)?.focus();
  }, true);

  // Clicks that open a new tab are left to the browser; htmx would intercept them.
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("a[hx-get]") && (event.ctrlKey || event.metaKey || event.shiftKey)) event.stopImmediatePropagation();
  }, true);
  // A click on a link to a text copies the text.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("[data-copy]");
    if (!link || event.ctrlKey || event.metaKey || !navigator.clipboard) return;
    event.preventDefault();
    const words = find("span", link);
    const before = words.textContent;
    try {
      const answer = await fetch(link.href);
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status)); // or redirected to the login
      await navigator.clipboard.writeText(await answer.text());
      words.textContent = "Copied";
    } catch {
      // Opens the text, to be copied by hand.
      location.assign(link.href);
      return;
    }
    setTimeout(() => { words.textContent = before; }, 1500);
  });

  let going = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) {
      event.preventDefault();
      if (palette.open) palette.close(); else openPalette();
      return;
    }
    // In a field with its own button, Enter clicks that one, not the first of the form.
    const own = event.key === "Enter" && event.target.matches?.(".with-button > input") && find("button", event.target.parentElement);
    if (own) {
      event.preventDefault();
      own.click();
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
      z: () => takeBack(),
      n: () => press("n"),
      p: () => press("p"),
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
    if (event.target === help || event.target === palette) event.target.close(); // click outside the dialog
  });

  // The palette's script is loaded after the page is displayed, at the latest when the palette is first opened. Keys pressed
  // before are stored with the field's text at that time, and replayed once the script has loaded.
  const held = [];
  let coming = null;
  let isHere = false;
  const tell = () => document.dispatchEvent(new CustomEvent("redrive:palette", { detail: { pressed, held: held.splice(0) } }));
  const fetchPalette = () => {
    if (coming) return;
    coming = load(palette.dataset.script);
    coming.then(() => { isHere = true; if (palette.open) tell(); }, () => { // until it is opened again it is a plain search form
      coming = null;
      const last = held.pop();
      if (!palette.open || last?.key !== "Enter") return;
      find("input", palette).value = last.words;
      find("form", palette).submit();
    });
  };
  const hold = (event, key) => {
    if (!coming || isHere) return;
    event.preventDefault();
    event.stopPropagation();
    if (held.at(-1)?.key !== "Enter") held.push({ key, words: find("input", palette).value });
  };
  palette?.addEventListener("submit", (event) => hold(event, "Enter"));
  palette?.addEventListener("keydown", (event) => { if (/^Arrow(Up|Down)$/.test(event.key)) hold(event, event.key); });
  const openPalette = () => {
    held.length = 0;
    find("input", palette).value = "";
    palette.showModal();
    if (isHere) tell(); else fetchPalette();
  };
  if (palette) addEventListener("load", () => (window.requestIdleCallback ?? setTimeout)(fetchPalette));
  if (/Mac|iP/.test(navigator.platform)) for (const key of all("[data-command]")) key.textContent = "⌘";
})();
