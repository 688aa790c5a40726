// A queue over time answers: point at it and its numbers are told, drag and what was dragged over is what is shown.
// The pictures come with the page (screens/depth_picture.py); what each step says stands in one attribute.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEAST = 6; // pixels: less was a click
  const number = (value) => (value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 }));
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
  const span = (seconds) => {
    if (seconds == null) return "";
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([one]) => seconds >= one) || [1, "s"];
    return `oldest ${Math.floor(seconds / size)} ${unit}`;
  };
  const read = new WeakMap();
  const known = (panel) => {
    const held = read.get(panel);
    if (held && held.text === panel.dataset.depth) return held;
    const fresh = { text: panel.dataset.depth, ...JSON.parse(panel.dataset.depth) };
    read.set(panel, fresh);
    return fresh;
  };
  const shape = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const part = (plot, event) => {
    const box = plot.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const moment = (data, share) => data.since + share * (data.until - data.since);

  const told = (panel) => panel.querySelectorAll("[data-value], [data-value-of], [data-when]");
  const quiet = (panel) => {
    for (const line of panel.querySelectorAll(".pointed")) line.remove();
    for (const place of told(panel)) if (place.dataset.was !== undefined) { place.textContent = place.dataset.was; delete place.dataset.was; }
  };
  const say = (place, text) => {
    place.dataset.was ??= place.textContent;
    place.textContent = text;
  };
  const point = (panel, share) => {
    const data = known(panel);
    const at = moment(data, share);
    const step = Math.floor((at - data.since) / data.step);
    let low = 0, high = data.at.length;
    while (low < high) { const middle = (low + high) >> 1; if (data.at[middle] <= step) low = middle + 1; else high = middle; }
    const n = low - 1;
    const gap = data.gaps.find(([since, until]) => at >= since && at < until);
    const is = n >= 0 && step - data.at[n] <= (data.step > 10 ? 0 : 2);
    for (const line of panel.querySelectorAll(".pointed")) line.remove();
    for (const plot of panel.querySelectorAll(".plot")) {
      plot.append(shape("line", { class: "pointed", x1: `${share * 100}%`, x2: `${share * 100}%`, y1: 4, y2: 136 }));
    }
    for (const place of panel.querySelectorAll("[data-value]")) say(place, is ? number(data.lines[place.dataset.value][n]) : "–");
    for (const place of panel.querySelectorAll("[data-value-of]")) say(place, is ? span(data.oldest[n]) : "");
    for (const place of panel.querySelectorAll("[data-when]")) say(place, `${clock(is ? data.since + data.at[n] * data.step : at)} UTC${gap ? ` · ${gap[2]}` : ""}`);
  };

  const zoom = (panel, from, to) => {
    const data = known(panel);
    const [since, until] = [from, to].sort((one, other) => one - other).map((share) => moment(data, share));
    const address = new URL(location.href);
    address.searchParams.delete("span");
    address.searchParams.set("since", Math.floor(since));
    address.searchParams.set("until", Math.ceil(until));
    location.assign(address);
  };

  let drag = null;
  const over = (event) => event.target.closest?.(".depth .plot");
  document.addEventListener("pointermove", (event) => {
    const plot = drag ? drag.plot : over(event);
    if (!plot) return;
    const panel = plot.closest(".depth");
    const share = part(plot, event);
    point(panel, share);
    if (!drag) return;
    const [left, right] = [drag.share, share].sort((one, other) => one - other);
    for (const chosen of panel.querySelectorAll(".chosen")) chosen.remove();
    for (const each of panel.querySelectorAll(".plot")) {
      each.append(shape("rect", { class: "chosen", x: `${left * 100}%`, width: `${(right - left) * 100}%`, y: 4, height: 132 }));
    }
  });
  document.addEventListener("pointerdown", (event) => {
    const plot = over(event);
    // With a finger one scrolls.
    if (!plot || event.button !== 0 || event.pointerType === "touch") return;
    event.preventDefault();
    drag = { plot, share: part(plot, event), x: event.clientX };
  });
  document.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { plot, share, x } = drag;
    drag = null;
    for (const chosen of document.querySelectorAll(".depth .chosen")) chosen.remove();
    if (Math.abs(event.clientX - x) >= LEAST) zoom(plot.closest(".depth"), share, part(plot, event));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !drag) return;
    drag = null;
    for (const chosen of document.querySelectorAll(".depth .chosen")) chosen.remove();
  });
  document.addEventListener("pointerout", (event) => {
    const plot = over(event);
    if (plot && !drag && !plot.contains(event.relatedTarget)) quiet(plot.closest(".depth"));
  });
  // While somebody points or drags, what is new waits.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "queue" && (drag || document.querySelector(".depth .pointed"))) event.detail.shouldSwap = false;
  });
  const wake = () => { for (const panel of document.querySelectorAll(".depth")) panel.classList.add("is-awake"); };
  document.addEventListener("htmx:afterSettle", wake);
  wake();
})();
