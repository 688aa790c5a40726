// Charts show their values at the pointer, or step by step with the arrow keys. They are part of the page as SVG; the values
// are in one attribute (dashboard/web/charts.py, reading):
//   <div data-chart='{"since": 0, "until": 60, "at": [0, 10], "series": {"dead": [1, 2]}}'><div data-plot>…</div></div>
// Values appear in elements that name their series (data-value, data-when), or in a note beside the pointer.
"use strict";
(() => {
  const LEAST = 6; // pixels: a shorter drag is a click
  const number = (value) => value == null ? "–" : typeof value === "string" ? value
    : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });
  const read = new WeakMap();
  const known = (host) => {
    const text = host.dataset.chart;
    if (read.get(host)?.text === text) return read.get(host);
    const data = { text, ...JSON.parse(text) };
    const [first] = Object.values(data.series);
    data.span = data.until - data.since;
    const each = (data.span || 1) / first.length;
    data.at ??= first.map((_, n) => n * each);
    data.each = data.span ? data.at[1] - data.at[0] || each : each;
    data.width = data.span || 1;
    read.set(host, data);
    return data;
  };
  const over = (target) => target.closest?.("[data-chart] [data-plot], [data-chart][data-plot]");
  const hostOf = (plot) => plot.closest("[data-chart]");
  const plotsOf = (host) => host.matches("[data-plot]") ? [host] : [...host.querySelectorAll("[data-plot]")];
  const part = (plot, event) => {
    const box = plot.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const add = (plot, name) => plot.querySelector(`:scope > .${name}`) || plot.appendChild(Object.assign(document.createElement("i"), { className: name }));
  const clear = (host, ...names) => { for (const name of names) for (const one of host.querySelectorAll(`[data-plot] > .${name}, :scope > .${name}`)) one.remove(); };

  const when = (data, n, moment) => {
    if (data.labels) return data.labels[n] ?? "";
    const { zone, zoneName } = document.documentElement.dataset;
    const form = { timeZone: zone, timeZoneName: "shortOffset" };
    const named = (date) => date.toLocaleTimeString("en", form).split(" ").pop();
    const date = new Date((data.since + (n < 0 ? moment : data.at[n])) * 1000);
    const at = date.toLocaleString("sv", { timeZone: zone });
    // The zone's name differs between standard and daylight saving time.
    return `${at.slice(5, 10)} ${at.slice(11, data.each < 60 ? 19 : 16)} ${named(date) === named(new Date()) ? zoneName : named(date)}`;
  };
  const say = (place, text) => { place.dataset.was ??= place.textContent; place.textContent = text; };
  // Shows the step at `moment`; returns its index, -1 for none.
  const show = (plot, moment, share = moment / known(hostOf(plot)).width) => {
    const host = hostOf(plot), data = known(host);
    let n = data.at.findLastIndex((at) => at <= moment);
    const gap = data.gaps?.find(([since, until]) => data.since + moment >= since && data.since + moment < until);
    if (n >= 0 && data.reach && moment - data.at[n] > data.reach) n = -1;
    const values = Object.entries(data.series).map(([name, all]) => [name, number(n < 0 ? null : all[n])]);
    const at = `${when(data, n, moment)}${gap ? ` · ${gap[2]}` : ""}`;
    const text = `${at}: ${values.map(([name, value]) => `${name} ${value}`).join(", ")}`;
    for (const one of plotsOf(host)) add(one, "pointed").style.left = `${share * 100}%`;
    for (const [name, value] of values) for (const place of host.querySelectorAll(`[data-value="${CSS.escape(name)}"]`)) say(place, value);
    const places = host.querySelectorAll("[data-when]");
    for (const place of places) say(place, at);
    if (!places.length) {
      const note = add(plot, "read-out");
      note.replaceChildren(Object.assign(document.createElement("b"), { textContent: at }),
        ...values.map(([name, value]) => Object.assign(document.createElement("span"), { textContent: `${name} ${value}` })));
      note.classList.toggle("is-left", share > 0.5);
    }
    plot.setAttribute("aria-valuetext", text);
    plot.setAttribute("aria-valuenow", Math.max(n, 0));
    return n;
  };
  const quiet = (host) => {
    clear(host, "pointed", "read-out", "chosen");
    for (const plot of plotsOf(host)) plot.setAttribute("aria-valuenow", known(host).at.length - 1);
    for (const place of host.querySelectorAll("[data-value], [data-when]")) {
      if (place.dataset.was !== undefined) { place.textContent = place.dataset.was; delete place.dataset.was; }
    }
  };

  const zoom = (host, from, to) => {
    const data = known(host);
    const [since, until] = [from, to].sort((one, other) => one - other).map((share) => data.since + share * data.span);
    const address = new URL(location.href);
    address.searchParams.delete("span");
    address.searchParams.set("since", Math.floor(since));
    address.searchParams.set("until", Math.ceil(until));
    location.assign(address);
  };
  let drag = null;
  document.addEventListener("pointermove", (event) => {
    const plot = drag ? drag.plot : over(event.target);
    if (!plot) return;
    const host = hostOf(plot), share = part(plot, event);
    show(plot, share * known(host).width, share);
    if (!drag) return;
    const [left, right] = [drag.share, share].sort((one, other) => one - other);
    for (const each of plotsOf(host)) Object.assign(add(each, "chosen").style, { left: `${left * 100}%`, width: `${(right - left) * 100}%` });
  });
  document.addEventListener("pointerdown", (event) => {
    const plot = over(event.target);
    // A drag with a finger scrolls.
    if (!plot || event.button !== 0 || event.pointerType === "touch" || !known(hostOf(plot)).zooms) return;
    event.preventDefault();
    drag = { plot, share: part(plot, event), x: event.clientX };
  });
  document.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { plot, share, x } = drag;
    drag = null;
    clear(hostOf(plot), "chosen");
    if (Math.abs(event.clientX - x) >= LEAST) zoom(hostOf(plot), share, part(plot, event));
  });
  document.addEventListener("pointerout", (event) => {
    const plot = over(event.target);
    if (plot && !drag && !plot.contains(event.relatedTarget) && plot !== document.activeElement) quiet(hostOf(plot));
  });
  const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && drag) { clear(hostOf(drag.plot), "chosen"); drag = null; return; }
    const plot = document.activeElement;
    if (!plot.matches?.("[data-plot]") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") return quiet(hostOf(plot));
    const move = KEYS[event.key];
    if (!move) return;
    event.preventDefault();
    const data = known(hostOf(plot));
    const n = Math.min(Math.max(Number(plot.getAttribute("aria-valuenow")) + move, 0), data.at.length - 1);
    show(plot, data.at[n], Math.min((data.at[n] + data.each / 2) / data.width, 1));
  });
  document.addEventListener("focusin", (event) => {
    const plot = event.target;
    if (!plot.matches?.("[data-plot]")) return;
    const data = known(hostOf(plot)), n = Number(plot.getAttribute("aria-valuenow"));
    if (plot.matches(":focus-visible")) show(plot, data.at[n], Math.min((data.at[n] + data.each / 2) / data.width, 1));
  });
  document.addEventListener("focusout", (event) => { if (event.target.matches?.("[data-plot]")) quiet(hostOf(event.target)); });
  // Refreshes wait while values are being read.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (drag || event.detail.target.querySelector?.(".pointed")) event.detail.shouldSwap = false;
  });
  const wake = () => {
    for (const host of document.querySelectorAll("[data-chart]")) {
      const last = known(host).at.length - 1;
      host.classList.add("is-awake");
      for (const plot of plotsOf(host)) {
        const label = plot.getAttribute("aria-label") || plot.querySelector("[aria-label]")?.getAttribute("aria-label") || "Picture";
        const now = Math.min(plot.getAttribute("aria-valuenow") ?? last, last);
        for (const [name, value] of Object.entries({ tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": now })) plot.setAttribute(name, value);
      }
    }
  };
  document.addEventListener("htmx:afterSettle", wake);
  wake();
})();
