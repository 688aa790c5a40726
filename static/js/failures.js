// The list of failures: a selection that survives paging, the failure beside the list, copying. Pages work without it.
"use strict";
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const KEY = "redrive-selection";
  const MOST = 10000;
  const form = () => find("[data-selection]");
  const query = () => find("#results")?.dataset.query ?? "";

  // ---------- selection ----------
  const read = () => {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEY) || "{}");
      return kept.query === query() && Array.isArray(kept.ids) ? new Set(kept.ids) : new Set();
    } catch { return new Set(); }
  };
  const keep = (ids) => {
    try { sessionStorage.setItem(KEY, JSON.stringify({ query: query(), ids: [...ids] })); } catch { /* this page only */ }
  };
  const boxes = () => all("[data-select]", form());
  const count = (n) => n.toLocaleString("en");

  const show = () => {
    const list = form();
    if (!list) return;
    const ids = read();
    const everything = find("[data-everything]", list);
    for (const box of boxes()) {
      box.checked = ids.has(box.value);
      box.closest("tr").classList.toggle("is-picked", box.checked || Boolean(everything?.checked));
    }
    const here = boxes().filter((box) => box.checked).length;
    const elsewhere = ids.size - here;
    const said = find("[data-picked]", list);
    if (said) {
      said.textContent = everything?.checked ? "" :
        ids.size ? `${count(ids.size)} selected${elsewhere ? `, ${count(elsewhere)} on other pages` : ""}` : "";
    }
    const short = find("[data-picked-short]", list);
    if (short) short.textContent = everything?.checked ? "all that match" : ids.size === 1 ? "1 job" : `${count(ids.size)} jobs`;
    const clear = find("[data-clear]", list);
    if (clear) clear.hidden = !ids.size;
    const page = find("[data-pick-page]", list);
    if (page) {
      page.hidden = false;
      page.checked = here > 0 && here === boxes().length;
      page.indeterminate = here > 0 && here < boxes().length;
    }
    for (const act of all("[data-needs-selection]", list)) {
      const off = !ids.size && !everything?.checked;
      if (act.matches("button")) act.disabled = off;
      else {
        find("summary", act).setAttribute("aria-disabled", String(off));
        if (off) act.open = false;
      }
    }
  };

  let last = null; // for shift-click
  document.addEventListener("click", (event) => {
    const box = event.target.closest?.("[data-select]");
    if (box) {
      const list = boxes();
      const ids = read();
      const from = list.indexOf(last);
      const range = event.shiftKey && from >= 0 ? list.slice(...[from, list.indexOf(box)].sort((a, b) => a - b).map((n, i) => n + i)) : [box];
      for (const one of range) if (box.checked) { if (ids.size < MOST) ids.add(one.value); } else ids.delete(one.value);
      keep(ids);
      last = box;
      show();
    }
    if (event.target.closest?.("[data-clear]")) { keep([]); show(); }
    const off = event.target.closest?.('summary[aria-disabled="true"]');
    if (off) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-pick-page]")) {
      const ids = read();
      for (const box of boxes()) if (event.target.checked) ids.add(box.value); else ids.delete(box.value);
      keep(ids);
      show();
    }
    if (event.target.matches?.("[data-everything]")) show();
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches?.("[data-selection]")) return;
    const list = event.target;
    for (const old of all("[data-carried]", list)) old.remove();
    const here = new Set(boxes().map((box) => box.value));
    const elsewhere = [...read()].filter((id) => !here.has(id));
    if (elsewhere.length && !find("[data-everything]", list)?.checked) {
      const carried = document.createElement("input");
      carried.type = "hidden";
      carried.name = "selection";
      carried.value = elsewhere.join(",");
      carried.dataset.carried = "";
      list.append(carried);
    }
    if (event.submitter?.name === "act") keep([]); // they leave the list
  });

  // ---------- the failure beside the list ----------
  const isWide = matchMedia("(min-width: 1200px)");
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[hx-get]");
    // A new tab is the browser's; htmx would take the click.
    if (link && (event.ctrlKey || event.metaKey || event.shiftKey)) event.stopImmediatePropagation();
    else if (link?.matches("[data-panel]") && !isWide.matches) event.stopImmediatePropagation();
  }, true);
  const panel = () => find("[data-detail]");
  const closePanel = () => {
    const open = panel();
    if (!open?.firstChild) return false;
    open.replaceChildren();
    for (const row of all("[data-row].is-open")) row.classList.remove("is-open");
    return true;
  };
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target?.matches?.("[data-detail]")) {
      const close = document.createElement("button");
      close.type = "button";
      close.className = "quiet icon-only panel-close";
      close.title = "Close (Esc)";
      close.setAttribute("aria-label", "Close");
      close.dataset.closePanel = "";
      close.textContent = "×";
      event.detail.target.prepend(close);
      event.detail.target.scrollTop = 0;
    }
    show();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-close-panel]")) closePanel();
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = find("details.menu[open]");
    if (menu) { menu.open = false; find("summary", menu).focus(); }
    else if (!find("dialog[open]") && !event.target.matches?.("input, textarea, select")) closePanel();
  });
  // What the list shows is what the field says.
  document.addEventListener("htmx:afterSettle", () => {
    const field = find("[data-search]");
    if (field && find("#results") && document.activeElement !== field) field.value = query();
    show();
  });

  // ---------- copying ----------
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("[data-copy]");
    if (!link || event.ctrlKey || event.metaKey || !navigator.clipboard) return;
    event.preventDefault();
    const words = find("span", link);
    const before = words.textContent;
    try {
      const answer = await fetch(link.href);
      if (!answer.ok) throw new Error(String(answer.status));
      await navigator.clipboard.writeText(await answer.text());
      words.textContent = "Copied";
    } catch {
      location.assign(link.href); // the text itself, to copy by hand
      return;
    }
    setTimeout(() => { words.textContent = before; }, 1500);
  });

  show();
  addEventListener("pageshow", show);
})();
