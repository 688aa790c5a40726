// Selection in a list: survives paging and refreshes, shift-click selects a range, and acts include rows on other pages.
"use strict";
// `list()`: its form, or null. `key`: key in sessionStorage. `field`: name of the submitted field. `scope()`: search for which
// the selection is valid; any other search has an empty selection. `everything()`: whether all matches are selected.
// `said(chosen, elsewhere)`: text of the selection. `shown(chosen)`: updates other parts of the list.
window.redriveSelection = ({ list, key, field, most, said, scope = () => "", everything = () => false, shown = () => {} }) => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const boxes = () => (list() ? all("[data-select]", list()) : []);
  const read = () => {
    try {
      const kept = JSON.parse(sessionStorage.getItem(key) || "{}");
      return kept.scope === scope() && Array.isArray(kept.chosen) ? new Set(kept.chosen) : new Set();
    } catch { return new Set(); }
  };
  // Without sessionStorage the selection is limited to this page.
  const keep = (chosen) => {
    try { sessionStorage.setItem(key, JSON.stringify({ scope: scope(), chosen: [...chosen] })); } catch {}
  };
  const elsewhere = () => {
    const here = new Set(boxes().map((box) => box.value));
    return everything() ? [] : [...read()].filter((value) => !here.has(value));
  };

  const show = () => {
    const form = list();
    if (!form) return;
    const chosen = read();
    for (const box of boxes()) {
      box.checked = chosen.has(box.value);
      box.closest("tr").classList.toggle("is-picked", box.checked || everything());
    }
    const here = boxes().filter((box) => box.checked).length;
    const words = find("[data-picked]", form);
    if (words) words.textContent = said(chosen.size, chosen.size - here);
    const clear = find("[data-clear]", form);
    if (clear) clear.hidden = !chosen.size;
    const page = find("[data-pick-page]", form);
    if (page) {
      page.hidden = false;
      page.checked = here > 0 && here === boxes().length;
      page.indeterminate = here > 0 && here < boxes().length;
    }
    const off = !chosen.size && !everything();
    for (const act of all("[data-needs-selection]", form)) {
      if (act.matches("button")) act.disabled = off;
      else {
        find("summary", act).setAttribute("aria-disabled", String(off));
        if (off) act.open = false;
      }
    }
    shown(chosen.size);
  };

  const choose = (some, isChosen) => {
    const chosen = read();
    for (const { value } of some) {
      if (!isChosen) chosen.delete(value);
      else if (chosen.size < most) chosen.add(value);
    }
    keep(chosen);
    show();
  };
  // For shift-click.
  let last = null;
  document.addEventListener("click", (event) => {
    if (!list()?.contains(event.target)) return;
    const box = event.target.closest("[data-select]");
    if (box) {
      const [from, to] = [boxes().indexOf(last), boxes().indexOf(box)].sort((a, b) => a - b);
      choose(event.shiftKey && from >= 0 ? boxes().slice(from, to + 1) : [box], box.checked);
      last = box;
    }
    if (event.target.closest("[data-clear]")) { keep([]); show(); }
    if (event.target.closest('summary[aria-disabled="true"]')) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (list()?.contains(event.target) && event.target.matches("[data-pick-page]")) choose(boxes(), event.target.checked);
  });
  document.addEventListener("submit", (event) => {
    const form = list();
    if (!form || event.target !== form) return;
    for (const old of all("[data-carried]", form)) old.remove();
    const others = elsewhere();
    if (!others.length) return;
    const carried = document.createElement("input");
    carried.type = "hidden";
    carried.name = field;
    carried.value = others.join(",");
    carried.dataset.carried = "";
    form.append(carried);
  });
  document.addEventListener("htmx:afterSettle", show);
  addEventListener("pageshow", show);
  return { boxes, read, keep, elsewhere, show };
};
