// The behaviour that all pages share: live parts, keyboard, messages, theme. Pages work without any of it.
"use strict";
(() => {
  const LIVE_EVERY = 5000;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // A script that no first view needs, fetched when it is needed; after a failure it is asked for anew.
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
  // One press, one act: a form is not sent a second time before its answer. feedback.js shows that it is on its way.
  const acting = new Map(); // form -> timer that frees it, where no event of htmx does
  const emit = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));
  const formOf = (element) => element.form || element.closest("form") || element;
  const isPress = ({ verb, triggeringEvent }) => verb !== "get" && /^(submit|click)$/.test(triggeringEvent?.type);
  const begin = (form, button, sender) => { // `sender`: of htmx
    // After feedback.js, which also says so; here in case that file never came.
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
    // A page that is led elsewhere is on its way out.
    if (isPress(requestConfig) && !xhr.getResponseHeader("HX-Redirect")) end(formOf(requestConfig.elt));
  });

  // ---------- live parts ----------
  // <div id=… data-live hx-get=… hx-trigger="redrive:tick" hx-swap="morph:outerHTML">: asked anew while the tab is
  // visible. A timer of our own, because htmx's trigger conditions need eval, which the policy forbids.
  const etags = new Map();

  const tick = () => {
    if (document.hidden || !window.htmx) return;
    feedback();
    if (!acting.size) for (const part of all("[data-live]:not(.htmx-request)")) window.htmx.trigger(part, "redrive:tick");
  };
  // One timer a page. A page that the browser keeps for its back button rests, and is asked anew when it is shown again:
  // what was on its way then never comes.
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
  // A menu that is open, text that is being chosen, or a form that is being sent, is not pulled away under the hand.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.requestConfig.elt.matches("[data-live]")) return; // an act, perhaps into a live part
    const chosen = document.getSelection();
    if (acting.size || (chosen && !chosen.isCollapsed && event.detail.elt.contains(chosen.anchorNode))) {
      event.detail.shouldSwap = false;
      etags.clear();
    }
  });
  // What a person wrote stays as it is.
  const isTyped = (node) => node.matches?.("input:not([type=hidden]), textarea") && node.value !== node.defaultValue;
  document.addEventListener("htmx:confirm", (event) => {
    if (event.defaultPrevented || window.Idiomorph || !event.detail.elt.closest("[hx-swap]")?.getAttribute("hx-swap").startsWith("morph")) return;
    event.preventDefault();
    load(find("meta[name=redrive-morph]").content).then(prepareMorph).then(() => event.detail.issueRequest(true), () => {
      emit("redrive:away", isPress(event.detail));
      end(formOf(event.detail.elt));
    });
  });
  // What a person opened stays open when its part is refreshed.
  function prepareMorph() {
    window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.matches("details, dialog")) && !(name === "value" && isTyped(node));
    // What was fetched branch by branch stays, as long as it is of the same run.
    window.Idiomorph.defaults.callbacks.beforeNodeMorphed = (node, next) => {
      // A refresh knows nothing of what was drawn in a picture: it stays, and is told the new numbers.
      if (node.dataset?.drawn !== undefined && next.dataset?.chart) {
        node.dataset.chart = next.dataset.chart;
        node.setAttribute("aria-label", next.getAttribute("aria-label"));
        return false;
      }
      if (!node.dataset?.still) return true;
      const isSame = node.dataset.still === next.dataset?.still;
      // What came later stays until it came again.
      const again = !isSame && next.matches?.("[hx-trigger=load]") && next.getAttribute("hx-get");
      if (again) window.htmx.ajax("GET", again, { target: node, swap: "outerHTML" });
      return !isSame && !again;
    };
  }

  // ---------- messages ----------
  const messages = find("#messages");
  // Errors, the loss of the connection and the progress of acts (feedback.js): no first view needs them.
  const feedback = () => { if (messages) load(messages.dataset.script).catch(() => { /* asked for again at the next tick */ }); };
  feedback();
  // At most three, the newest last. The page gets as much room below as they take, and what is to be pressed is moved out
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
      // A success also ends what was refused before it.
      const isDone = come.some((node) => node.matches?.(".is-success") || node.querySelector?.(".is-success"));
      if (come.length) for (const old of all(isDone ? "[data-toast]" : "[data-toast]:not(.is-error, :has(form))")) if (!come.some((node) => node.contains(old))) old.remove();
      makeRoom();
    }).observe(messages, { childList: true });
    makeRoom();
  }

  // ---------- search ----------
  // Completion is fetched when the field is first used: most pages are left without.
  const searched = find("[data-search]");
  const completed = () => {
    load(searched.dataset.script).catch(() => { /* one can still search */ });
  };
  searched?.addEventListener("focus", completed);
  if (searched && document.activeElement === searched) completed();
  // Kept here, as a quick hand searches before the completion is there. The next person at this screen is not told of it.
  document.addEventListener("submit", ({ target }) => {
    try {
      if (target === searched?.form) localStorage.setItem("redrive-searched", searched.value);
      else if (/\/logout\/$/.test(target.action)) for (const key of ["redrive-searches", "redrive-searched"]) localStorage.removeItem(key);
    } catch { /* nothing is kept */ }
  }, true);

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

  // ---------- time zone ----------
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const one of all("[data-zone-switch]")) {
    one.hidden = zone === "UTC" && here === "UTC";
    one.addEventListener("click", () => {
      document.cookie = `redrive-time-zone=${zone === "UTC" ? here : ""};path=/;max-age=31536000;samesite=lax`;
      location.reload();
    });
  }
  // Another tab may have switched meanwhile: what this page shows and sends stays in its own zone.
  document.addEventListener("htmx:configRequest", (event) => { event.detail.headers["X-Time-Zone"] = zone; });
  document.addEventListener("formdata", (event) => {
    if (event.target.querySelector("[type=datetime-local], [name=due_at]")) event.formData.set("time_zone", zone);
  });

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
    return Boolean(target) && !target.disabled && pressed(target);
  };
  const pressed = (target) => {
    target.focus();
    target.click();
    const menu = target.matches("summary") && target.closest("details.menu[open]");
    if (menu) find("input:not([type=hidden]), textarea, select", menu)?.focus();
    return true;
  };

  // ---------- taking back ----------
  // What a message offers; else one's own latest act, which is asked about unless it was one job or one group.
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
    // Also outside the sheet.
    if (leaves || event.target === undo) undo.close();
  });

  // ---------- where one stands after an act ----------
  // A form answers with a page. There the field that was refused has the focus, else the row or the button that was acted
  // with, else the title: whoever works by keyboard is never thrown back to the beginning.
  const STOOD = "redrive-stood";
  const summaryOf = (element) => { const menu = element?.closest("details.menu"); return menu && find("summary", menu); };
  const picked = () => rows().findIndex((row) => find("[data-select]:checked", row));
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post" || /\/log(in|out)\/$/.test(form.action)) return;
    begin(form, event.submitter);
    const stood = { at: Date.now(), action: form.getAttribute("action"), menu: summaryOf(event.submitter)?.textContent, row: picked() };
    try { sessionStorage.setItem(STOOD, JSON.stringify(stood)); } catch { /* then the page begins at its beginning */ }
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

  // A menu closes by a click beside it and by Escape, which then closes nothing else.
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

  // What a menu asks first is asked at once.
  document.addEventListener("toggle", (event) => {
    const menu = event.target;
    if (!menu.matches?.("details.menu") || !menu.open || menu.contains(find("input:focus, textarea:focus, select:focus"))) return;
    find("input:not([type=hidden], [type=checkbox])", menu)?.focus();
  }, true);

  // A new tab is the browser's; htmx would take the click.
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("a[hx-get]") && (event.ctrlKey || event.metaKey || event.shiftKey)) event.stopImmediatePropagation();
  }, true);
  // A link to a text, clicked, copies the text.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("[data-copy]");
    if (!link || event.ctrlKey || event.metaKey || !navigator.clipboard) return;
    event.preventDefault();
    const words = find("span", link);
    const before = words.textContent;
    try {
      const answer = await fetch(link.href);
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status)); // or sent to the login
      await navigator.clipboard.writeText(await answer.text());
      words.textContent = "Copied";
    } catch {
      // The text itself, to copy by hand.
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
    // A field with a button of its own: Enter presses that one, not the first of the form.
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
    if (event.target === help || event.target === palette) event.target.close(); // outside the sheet
  });

  // What the palette does is fetched once the page stands, at the latest when it is first opened. What is pressed in it
  // before is held, with the words that stood in the field then, and done when the script is here.
  const held = [];
  let coming = null;
  let isHere = false;
  const tell = () => document.dispatchEvent(new CustomEvent("redrive:palette", { detail: { pressed, held: held.splice(0) } }));
  const fetchPalette = () => {
    if (coming) return;
    coming = load(palette.dataset.script);
    coming.then(() => { isHere = true; if (palette.open) tell(); }, () => { // until it is opened again it is a form that searches
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
